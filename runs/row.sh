#!/bin/sh
# One row of the scoreboard: trains a preset with several seeds and evaluates them on val_unseen.
#
#   SCENEMEM_DATA=DIR runs/row.sh PRESET TRACK [r4r] [described] [SEED...] [-- FLAG...]
#
# TRACK names the features: captions, objects or oracle. Seeds are 0 1 2 unless named. What follows -- goes to
# 'scenemem train'; ROW=NAME then names the folder, so that the row does not mix with the plain one. A run that was
# interrupted goes on where it was left, a finished one is not trained again. A described row begins with the runs of
# the row without that word and learns from a speaker of its track (runs/speaker.sh) as well; both are trained first
# when they are not there.
set -eu

usage='name a preset and a track, for example: runs/row.sh ssm captions'
preset=${1:?$usage}
track=${2:?$usage}
shift 2
task=r2r
described=
seeds=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
    r2r | r4r) task=$1 ;;
    described) described=1 ;;
    *) seeds="$seeds $1" ;;
    esac
    shift
done
[ $# -eq 0 ] || shift
data=${SCENEMEM_DATA:?set SCENEMEM_DATA to the data folder}
base=$preset-$task-$track
plain=$base${described:+-augmented}
row=${ROW:-$plain}
if [ $# -gt 0 ] && [ "$row" = "$plain" ]; then
    echo "error: flags after -- make another row; name it: ROW=NAME runs/row.sh $preset $track -- $*" >&2
    exit 2
fi
here=$(dirname "$0")

train() { # SEED FLAG...
    seed=$1
    shift
    run=$here/$row/$seed
    if [ -e "$run/checkpoints/last.safetensors" ]; then
        scenemem train --data "$data" --out "$run" --resume # a run remembers its flags
        return
    fi
    if [ -n "$described" ]; then
        ROW= "$here/row.sh" "$preset" "$track" "$task" "$seed"
        "$here/speaker.sh" "$track"
        set -- --begin "$here/$base/$seed" --speaker "$here/speaker-$track/0" "$@"
    fi
    scenemem train "$preset" --data "$data" --features "$track" --task "$task" --seed "$seed" --out "$run" "$@"
}

runs=
for number in ${seeds:-0 1 2}; do
    train "$number" "$@"
    runs="$runs $here/$row/$number"
done
# shellcheck disable=SC2086
scenemem compare $runs --data "$data" --split val_unseen
