#!/bin/sh
# A table of docs/family.md: trains every system of the family on one task and puts it beside basic.
#
#   SCENEMEM_DATA=DIR runs/family.sh r2r-captions [SEED...]
#
# The task is r2r-TRACK, or r4r-TRACK for the systems of the paper's second table; seeds are 0 1 2 unless named.
# JOBS=2 trains two at a time. A run that was interrupted goes on where it was left, a finished one is not trained
# again; what a run says lies beside its folder, in runs/family/TASK.
set -eu

data=${SCENEMEM_DATA:?set SCENEMEM_DATA to the data folder}
here=$(dirname "$0")

if [ "${1:-}" = --one ]; then # TASK SYSTEM SEED: one training, for the workers below
    run=$here/family/$2/$3-$4
    if [ -e "$run/checkpoints/last.safetensors" ]; then
        set -- --resume
    else
        case $2 in r4r-*) split=val_seen ;; *) split=val_unseen ;; esac # val_unseen of R4R is large: once, at the end
        set -- "$3" --task "${2%%-*}" --features "${2#*-}" --seed "$4" --iterations 300 --selection.every 300 --selection.split "$split"
    fi
    echo "$run"
    scenemem train "$@" --data "$data" --out "$run" > "$run.log" 2>&1 && exit
    echo "error: $run was not trained; see $run.log" >&2
    exit 255 # xargs starts nothing more
fi

task=${1:?name a task, for example r2r-captions}
shift
case $task in
r2r-*)
    systems="basic student-forcing rpa speaker-follower rcm self-monitoring regretful fast oaam egp auxrn
        active-perception pta duet ssm-plus ssm"
    ;;
r4r-*) systems="basic speaker-follower rcm rcm-fidelity oaam egp egp-revisits pta ssm-plus ssm" ;;
*)
    echo "error: the task $task is unknown; use r2r-TRACK or r4r-TRACK, TRACK being captions, objects or oracle" >&2
    exit 2
    ;;
esac
folder=$here/family/$task
mkdir -p "$folder"
runs=
jobs=
[ $# -gt 0 ] || set -- 0 1 2
for seed in "$@"; do
    for system in $systems; do
        jobs="$jobs $task $system $seed"
        runs="$runs $folder/$system-$seed"
    done
done
# shellcheck disable=SC2086
printf '%s\n' $jobs | xargs -n 3 -P "${JOBS:-1}" "$0" --one
for split in val_seen val_unseen; do
    # shellcheck disable=SC2086
    scenemem compare $runs --data "$data" --split $split --against "basic-$task" --processes "${JOBS:-1}" --json \
        > "$folder/$split.json.new"
    mv "$folder/$split.json.new" "$folder/$split.json"
done
# shellcheck disable=SC2086
python "$here/../tools/as_released.py" "$data" $runs > "$folder/as_released.json.new"
mv "$folder/as_released.json.new" "$folder/as_released.json"
python "$here/../tools/family_table.py" "$task" \
    "$folder/val_unseen.json" "$folder/val_seen.json" "$folder/as_released.json"
