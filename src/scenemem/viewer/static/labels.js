// Finding space for the words on a map.

const CHARACTER = 6.9; // pixels, of the small type on the map
const LINE = 14;
const MOST_CHANCES = 3; // of one decision

class Labels {
  constructor(width, height) {
    Object.assign(this, { width, height, boxes: [], lines: [] });
  }

  /** Keep words off a line where there is other space. */
  avoid([ax, ay], [bx, by]) {
    const steps = Math.ceil(Math.hypot(bx - ax, by - ay) / LINE);
    for (let i = 0; i <= steps; i += 1) {
      const [x, y] = [ax + ((bx - ax) * i) / steps, ay + ((by - ay) * i) / steps];
      this.lines.push([x - 6, y - 6, x + 6, y + 6]);
    }
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
      : [0, -22, 22, -40, 40].flatMap((dy) => [0, -half, half, -2 * half, 2 * half].map((dx) => [dx, dy]))
        .sort((a, b) => Math.hypot(...a) - Math.hypot(...b));
    for (const taken of [[...this.boxes, ...this.lines], this.boxes]) {
      for (const [dx, dy] of shifts) {
        const box = [x + dx - half, y + dy - LINE / 2, x + dx + half, y + dy + LINE / 2];
        if (this.free(box, taken)) {
          this.boxes.push(box);
          return [x + dx, y + dy + 4];
        }
      }
    }
    return needed ? [Math.min(x + aside, this.width - half), y + 4] : null;
  }

  free([left, top, right, bottom], taken) {
    const inside = left >= 0 && top >= 0 && right <= this.width && bottom <= this.height;
    return inside && taken.every((box) => right <= box[0] || left >= box[2] || bottom <= box[1] || top >= box[3]);
  }
}

/** The chances worth a word: of the likeliest places to go on from, unless that was no question, and of the likeliest ways.
 *  Place -> its share and the kind of decision it belongs to. */
function chancesOf(frame) {
  const shares = new Map();
  const places = frame.frontier ? frame.frontier.options : [];
  const certain = places.some((option) => option.place === frame.here && option.probability > 0.9);
  const ways = (frame.action ? frame.action.options : [])
    .filter((option) => !option.stop && !(frame.frontier && frame.numbers.has(option.place)));
  const note = (kind) => (option) => shares.set(option.place, { kind, share: (shares.get(option.place)?.share ?? 0) + option.probability });
  likeliest(certain ? [] : places).forEach(note("to-place"));
  likeliest(ways).forEach(note("to-way"));
  return new Map([...shares].filter(([, { share }]) => share >= 0.05));
}

function likeliest(options) {
  return [...options].sort((a, b) => b.probability - a.probability).slice(0, MOST_CHANCES);
}
