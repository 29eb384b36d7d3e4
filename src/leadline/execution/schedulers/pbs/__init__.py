"""PBS Professional, OpenPBS and Torque, through qsub, qstat, qdel and qalter."""
