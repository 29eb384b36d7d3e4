#!/bin/bash
#SBATCH --job-name=digits-cnn
#SBATCH --account=abc123
#SBATCH --partition=gpu-shared
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus=2
#SBATCH --mem=32768M
#SBATCH --time=02:01:00
#SBATCH --signal=B:USR1@300
#SBATCH --output=%x-%j.out

trap '' USR1 USR2
export LEADLINE_KEY=${SLURM_JOB_NAME#digits-cnn-}
[ "$LEADLINE_KEY" != "$SLURM_JOB_NAME" ] || LEADLINE_KEY=$SLURM_JOB_ID
output=$(readlink /proc/$$/fd/1 || true)
case $output in */runs/*.log)
  output=${output##*/} output=${output%.log} LEADLINE_KEY=${output} ;;
esac
set -eo pipefail
module load cuda
set -u
export OMP_NUM_THREADS=8
if [ -x /opt/python ] && [ -r /opt/wrapper.py ]; then
  exec /opt/python -P -m leadline.execution.wrapper --once --since-s "$SECONDS" --result /scratch/me/runs/"$LEADLINE_KEY".json --site-walltime-s 7260 -- python train.py --epochs 3 --run-name 'it'"'"'s a run'
fi
echo 'leadline is not installed here: the job runs unmeasured' >&2
leadline=/scratch/me/runs/"$LEADLINE_KEY"
set -C
if ! { true > "$leadline".started; } 2>/dev/null && [ -e "$leadline".started ]; then
  if { read -r code _ < "$leadline".ended; } 2>/dev/null; then exit "$code"; fi
  echo "leadline: $LEADLINE_KEY was started before, and nothing tells how it ended: it is not started again" >&2
  exit 125
fi
set +C
trap : USR1 USR2
code=0 term=
printf -v began '%(%s)T' -1
(trap - INT QUIT; exec python train.py --epochs 3 --run-name 'it'"'"'s a run') & child=$!
trap 'term=TERM; kill -TERM "$child" 2>/dev/null || true' TERM
while kill -0 "$child" 2>/dev/null; do wait "$child" || true; done
wait "$child" || code=$?
printf '%s %s %(%s)T %s\n' "$code" "$began" -1 "$term" > "$leadline".ended || true
exit "$code"
