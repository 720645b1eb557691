# The log of a run when its writer is killed, and when a disk is full.
esp_fault_test(metrics_test.py CLASSES Killed Full)
