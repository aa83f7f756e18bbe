#!/usr/bin/env bash
# Measure towernmt on a GPU within ten minutes: each step prints what it measured and what was expected.
#
#     benchmarks/gpu_session.sh [DIRECTORY]       logs, the trace and summary.txt (default: gpu-session)
#
# A step that fails or exceeds its time does not stop the next one. Environment:
#
#     GPU_SESSION_STEPS="devices train"   only these steps, in this order (benchmarks/gpu_steps.py lists them)
#     GPU_SESSION_SIZE=small              tiny models, to try the script on a machine without a GPU
#     GPU_SESSION_PYTHON="python3.12"     the interpreter with its arguments
#     GPU_SESSION_PATIENCE=10             factor of the time limits, for a slow machine
set -u
here=$(cd "$(dirname "$0")" && pwd)
output=${1:-gpu-session}
mkdir -p "$output"
read -r -a python <<<"${GPU_SESSION_PYTHON:-python}"
export PYTHONPATH="$here/..${PYTHONPATH:+:$PYTHONPATH}"
summary="$output/summary.txt"
: >"$summary"
failed=0

# step NAME SECONDS EXPECTED: run a step of gpu_steps.py for at most SECONDS.
step() {
    local name=$1 seconds=$(($2 * ${GPU_SESSION_PATIENCE:-1})) expected=$3 begin=$SECONDS status=0 measured
    case " ${GPU_SESSION_STEPS:-$name} " in *" $name "*) ;; *) return ;; esac
    timeout --kill-after=5 "$seconds" "${python[@]}" "$here/gpu_steps.py" "$name" "$output" >"$output/$name.log" 2>&1 || status=$?
    measured=$(sed -n 's/^measured: //p' "$output/$name.log")
    case $status in
        0) ;;
        124 | 137) measured="${measured:+$measured; }stopped after $seconds s" failed=1 ;;
        *) measured="${measured:+$measured; }failed with status $status: $(tail -n 1 "$output/$name.log")" failed=1 ;;
    esac
    printf '%s (%d s)\n  measured: %s\n  expected: %s\n' "$name" $((SECONDS - begin)) "${measured//$'\n'/$'\n'            }" \
        "$expected" | tee -a "$summary"
}

step devices     60 "one GPU; relative error of a product about 3e-4 with TF32 and 1e-7 without"
step gradients  180 "relative distance from the CPU about 1e-6 in float32, 1e-3 with TF32, 1e-2 in bfloat16"
step resume     120 "equal bits after a kill and a resumption"
step train      240 "4,096 tokens: 100,000 to 160,000 target tokens/s; 25,000 tokens: 150,000 to 250,000; bfloat16 faster"
step variants   160 "any order 10 to 18 % faster than deterministic kernels; plain norms slower; Muon not estimated"
step models     150 "not estimated"
step forms       60 "an addition for a product with bias; heads by 16 bytes; which sum of columns is not known"
step norms       30 "cuDNN is faster than plain operations; relative distance below 1e-3"
step translate   60 "3 to 4 ms a step; 512 sentences a batch at least 4 times as fast as 64"
step memory     240 "a batch size that needs at most 40 GiB"
step skip        60 "one batch is skipped, and training continues"
step trace       60 "about 1,800 kernels in float32, at most 30 copies each way"
exit $failed
