#!/usr/bin/env bash
# One training as a job of SLURM, on one machine or several. Change the lines below to what your cluster has.
#
#   sbatch recipes/launch/slurm.sh RECIPE RUN [KEY=VALUE ...]
#
# RUN must be on a file system that all machines share. Two minutes before its time is over the job is told so
# (SIGTERM): it writes a checkpoint and ends with status 143, goes into the queue again, and `--resume` goes on. Where a
# process dies, all of them end, with status 1; then the job is not repeated, since it may die again.
#SBATCH --job-name=seqcomposer
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=seqcomposer-%j.log
set -uo pipefail

if [ "$#" -lt 2 ]; then
  echo "usage: sbatch $0 RECIPE RUN [KEY=VALUE ...]" >&2
  exit 2
fi
recipe=$1
run=$2
shift 2

srun --kill-on-bad-exit=1 seqcomposer train "$recipe" --run "$run" --resume "$@"
status=$?
# a job that somebody has cancelled is told so as well, and is no longer running
if [ "$status" -eq 143 ] && [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
