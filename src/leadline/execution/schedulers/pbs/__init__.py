"""PBS: PBS Professional, OpenPBS and Torque, by their qsub, qstat, qdel and qalter."""
