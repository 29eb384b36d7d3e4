#!/bin/bash
#SBATCH --job-name=digits-cnn-k7f3
#SBATCH --comment=leadline:k7f3
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --output=%x-%j.out

set -eo pipefail
module load cuda
set -u
if python3 -P -m leadline.execution.wrapper --version >/dev/null 2>&1; then
  exec python3 -P -m leadline.execution.wrapper --result 'leadline-${SLURM_JOB_ID}.json' -- python train.py --epochs 3 --run-name 'it'"'"'s a run'
fi
echo 'leadline is not installed here: the job runs unmeasured' >&2
exec python train.py --epochs 3 --run-name 'it'"'"'s a run'
