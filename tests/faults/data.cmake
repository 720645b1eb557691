# Sample accounting across restarts.
esp_fault_test(data_samples_test.py CLASSES Samples TIMEOUT 300)
