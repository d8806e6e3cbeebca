#!/usr/bin/env bash
# One training on one machine or several: run this on each of them, with the same words.
#
#   recipes/launch/torchrun.sh RECIPE RUN [KEY=VALUE ...]
#
# RUN must be the same folder on all machines, on a file system that they share. From the environment:
#   PROCESSES  on each machine: a number, or gpu: one for each GPU (gpu)
#   MACHINES   how many (1)
#   HEAD       HOST:PORT of one of the machines, where all of them meet; with one machine it is not needed
#   ADDRESS    this machine's own address, where its name alone does not lead to it
#   RESTARTS   how often all begin again after one of them has died (3)
#
# Where a process dies, torchrun ends all of them and starts all of them anew; `--resume` goes on from the last
# checkpoint, and begins where there is none yet. The recipe needs no word of it: `trainer: {devices: auto,
# num_nodes: auto}`, its default, are what torchrun has started.
set -euo pipefail

if [ "$#" -lt 2 ]; then
  echo "usage: $0 RECIPE RUN [KEY=VALUE ...]" >&2
  exit 2
fi
if [ "${MACHINES:-1}" -gt 1 ] && [ -z "${HEAD:-}" ]; then
  echo "$0: with several machines, HEAD must say where they meet: HEAD=HOST:PORT, the same on all of them" >&2
  exit 2
fi
recipe=$1
run=$2
shift 2

# the processes that are started anew must not find the addresses of those that have died
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun \
  --nnodes "${MACHINES:-1}" \
  --nproc-per-node "${PROCESSES:-gpu}" \
  --max-restarts "${RESTARTS:-3}" \
  --monitor-interval 1 \
  --rdzv-backend c10d \
  --rdzv-endpoint "${HEAD:-localhost:0}" \
  --rdzv-id "$(basename -- "$run")" \
  ${ADDRESS:+--local-addr "$ADDRESS"} \
  --no-python -- seqcomposer train "$recipe" --run "$run" --resume "$@"
