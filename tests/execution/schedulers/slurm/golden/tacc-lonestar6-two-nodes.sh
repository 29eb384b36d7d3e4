#!/bin/bash
#SBATCH --job-name=digits-cnn-k7f3
#SBATCH --comment=leadline:k7f3
#SBATCH --account=PAS0001
#SBATCH --partition=gpu-a100
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=02:01:00
#SBATCH --output=%x-%j.out

set -eo pipefail
module load cuda
set -u
if python3 -P -m leadline.execution.wrapper --version >/dev/null 2>&1; then
  exec ibrun python3 -P -m leadline.execution.wrapper --result 'leadline-${SLURM_JOB_ID}-${SLURM_PROCID}.json' --site-walltime-s 7260 -- python train.py --epochs 3 --run-name 'it'"'"'s a run'
fi
echo 'leadline is not installed here: the job runs unmeasured' >&2
exec ibrun python train.py --epochs 3 --run-name 'it'"'"'s a run'
