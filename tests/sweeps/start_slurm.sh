#!/usr/bin/env bash
# Start a Slurm of one node on this machine, from Debian's slurm-wlm, in the folder $1; SLURM_CONF is its slurm.conf.
# It needs root, and `kill $(cat $1/*.pid)` stops it.
set -euo pipefail
home=$(realpath "$1")
mkdir -p "$home"/{state,spool,log}
host=$(hostname -s)
cpus=$(getconf _NPROCESSORS_ONLN) # `nproc` listens to OMP_NUM_THREADS
cat > "$home/slurm.conf" <<CONF
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
SlurmctldLogFile=$home/log/slurmctld
SlurmdLogFile=$home/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1
InactiveLimit=0
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:8
CONF
mkdir -p /run/munge && chown munge: /run/munge
pgrep -x munged > /dev/null || setpriv --reuid=munge --regid=munge --init-groups munged
export SLURM_CONF="$home/slurm.conf"
slurmctld
slurmd
for _ in $(seq 60); do sinfo -h -o %T 2> /dev/null | grep -q idle && exit 0; sleep 0.5; done
sinfo; tail "$home"/log/*; exit 1
