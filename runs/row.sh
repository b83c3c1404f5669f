#!/bin/sh
# One row of the scoreboard: trains a preset with several seeds and evaluates them on val_unseen.
#
#   SCENEMEM_DATA=DIR runs/row.sh PRESET [SEED...] [-- FLAG...]
#
# Seeds are 0 1 2 unless named. What follows -- goes to 'scenemem train'; ROW=NAME then names the folder, so that
# the row does not mix with the plain one. A run that was interrupted goes on where it was left, a finished one is
# not trained again. Presets that end in -augmented begin with the runs of the preset without that ending and need
# a speaker of their track (runs/speaker.sh); both are trained first when they are not there.
set -eu

preset=${1:?name a preset, for example ssm-r2r-captions}
shift
seeds=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    seeds="$seeds $1"
    shift
done
[ $# -eq 0 ] || shift
data=${SCENEMEM_DATA:?set SCENEMEM_DATA to the data folder}
row=${ROW:-$preset}
if [ $# -gt 0 ] && [ "$row" = "$preset" ]; then
    echo "error: flags after -- make another row; name it: ROW=NAME runs/row.sh $preset -- $*" >&2
    exit 2
fi
here=$(dirname "$0")

train() { # SEED FLAG...
    seed=$1
    shift
    run=$here/$row/$seed
    if [ -e "$run/checkpoints/last.safetensors" ]; then
        scenemem train "$preset" --data "$data" --out "$run" --resume # a run remembers its flags
        return
    fi
    case $preset in
    *-augmented)
        base=${preset%-augmented}
        ROW= "$here/row.sh" "$base" "$seed"
        track=${base##*-}
        "$here/speaker.sh" "$track"
        set -- --begin "$here/$base/$seed" --speaker "$here/speaker-$track/0" "$@"
        ;;
    esac
    scenemem train "$preset" --data "$data" --seed "$seed" --out "$run" "$@"
}

runs=
for number in ${seeds:-0 1 2}; do
    train "$number" "$@"
    runs="$runs $here/$row/$number"
done
# shellcheck disable=SC2086
scenemem compare $runs --data "$data" --split val_unseen
