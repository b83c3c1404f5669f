// Finding space for the words on a map.

const CHARACTER = 6.9; // pixels, of the small type on the map
const LINE = 14;
const MOST_CHANCES = 3; // of one decision

class Labels {
  constructor(width, height) {
    Object.assign(this, { width, height, boxes: [] });
  }

  /** Keep words off a sign. */
  block([x, y], radius) {
    this.boxes.push([x - radius, y - radius, x + radius, y + radius]);
  }

  /** The baseline's middle of words near a spot, clear of everything so far; null when there is no space. */
  place([x, y], words, gap, needed) {
    const half = (words.length * CHARACTER) / 2;
    const aside = half + gap;
    const shifts = needed
      ? [[aside, 0], [aside, -gap], [-aside, 0], [-aside, -gap], [0, -gap - 7], [0, gap + 7], [aside, gap], [-aside, gap]]
      : [[0, 0], [0, -22], [0, 22], [0, -40], [0, 40]];
    for (const [dx, dy] of shifts) {
      const box = [x + dx - half, y + dy - LINE / 2, x + dx + half, y + dy + LINE / 2];
      if (this.free(box)) {
        this.boxes.push(box);
        return [x + dx, y + dy + 4];
      }
    }
    return needed ? [Math.min(x + aside, this.width - half), y + 4] : null;
  }

  free([left, top, right, bottom]) {
    const inside = left >= 0 && top >= 0 && right <= this.width && bottom <= this.height;
    return inside && this.boxes.every((box) => right <= box[0] || left >= box[2] || bottom <= box[1] || top >= box[3]);
  }
}

/** The chances worth a word: of the likeliest places to go on from, unless that was no question, and of the likeliest ways. */
function chancesOf(frame) {
  const shares = new Map();
  const places = frame.frontier ? frame.frontier.options : [];
  const certain = places.some((option) => option.place === frame.here && option.probability > 0.9);
  const ways = (frame.action ? frame.action.options : [])
    .filter((option) => !option.stop && !(frame.frontier && frame.numbers.has(option.place)));
  for (const option of [...likeliest(certain ? [] : places), ...likeliest(ways)]) {
    shares.set(option.place, (shares.get(option.place) ?? 0) + option.probability);
  }
  return shares;
}

function likeliest(options) {
  return [...options].sort((a, b) => b.probability - a.probability).slice(0, MOST_CHANCES);
}
