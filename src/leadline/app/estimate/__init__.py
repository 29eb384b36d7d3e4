"""The verbs that predict a workload: estimate, fit, recommend, adapt."""
