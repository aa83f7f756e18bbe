#!/usr/bin/env bash
# Measure towernmt on a GPU within fifteen minutes: each step prints what it measured and what was expected of an H100.
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

step devices     60 "one GPU; relative error of a product about 3e-4 with TF32 and 3e-6 without"
step gradients  180 "median distance from the CPU: 3e-7 in float32, up to 4e-3 with TF32, 1e-2 in bfloat16"
step resume     120 "equal bits after a kill and a resumption"
step train      240 "bfloat16: 4,096 tokens 93,000 target tokens/s; 12,500: 163,000; 25,000: 168,000 (before 16-byte heads)"
step variants   160 "any order 0.88 of the speed, plain norms 1.01, Muon 0.91"
step models     150 "seq2seq 67,000 target tokens/s, rnnsearch 115,000, convs2s 124,000"
step forms       60 "an addition for a product with bias; heads by 16 bytes; which sum of columns is not known"
step norms       30 "cuDNN 0.76 of the time of plain operations"
step translate   60 "6.9 ms a step with 64 sentences a batch; 11.3 ms and 781 sentences/s with 512"
step memory     240 "a batch size that needs at most 40 GiB"
step skip        60 "one batch is skipped, and training continues"
step trace       60 "about 1,730 kernels in float32, at most 30 copies each way"
exit $failed
