#!/bin/sh
# The speaker that the augmented rows of the scoreboard listen to; goes on where it was left.
#
#   SCENEMEM_DATA=DIR runs/speaker.sh TRACK
set -eu

data=${SCENEMEM_DATA:?set SCENEMEM_DATA to the data folder}
track=${1:?name a track of features: captions, objects or oracle}
run=$(dirname "$0")/speaker-$track/0

set --
if [ -e "$run/checkpoints/last.safetensors" ]; then
    set -- --resume
fi
scenemem speak train speaker --data "$data" --features "$track" --iterations 2400 --seed 0 --out "$run" "$@"
