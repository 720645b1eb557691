# A Slurm of one node.
esp_fault_test(slurm_test.py CLASSES Srun)
