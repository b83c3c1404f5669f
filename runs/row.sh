#!/bin/sh
# One row of the scoreboard: trains a preset with several seeds and evaluates them on val_unseen.
#
#   SCENEMEM_DATA=DIR runs/row.sh PRESET [SEED...]
#
# Seeds are 0 1 2 unless named. A run that was interrupted goes on where it was left, a finished one is not
# trained again. Presets that end in -augmented begin with the runs of the preset without that ending and need
# a speaker (runs/speaker.sh); both are trained first when they are not there.
set -eu

preset=${1:?name a preset, for example ssm-r2r-objects}
shift
seeds=${*:-0 1 2}
data=${SCENEMEM_DATA:?set SCENEMEM_DATA to the data folder}
here=$(dirname "$0")

for seed in $seeds; do
    run=$here/$preset/$seed
    set --
    case $preset in
    *-augmented)
        base=${preset%-augmented}
        "$here/row.sh" "$base" "$seed"
        "$here/speaker.sh"
        set -- --begin "$here/$base/$seed" --speaker "$here/speaker/0"
        ;;
    esac
    if [ -e "$run/checkpoints/last.safetensors" ]; then
        set -- --resume # a run remembers what it began with
    fi
    scenemem train "$preset" --data "$data" --seed "$seed" --out "$run" "$@"
done

runs=
for seed in $seeds; do
    runs="$runs $here/$preset/$seed"
done
# shellcheck disable=SC2086
scenemem compare $runs --data "$data" --split val_unseen
