# metrics.jsonl when its writer is killed, and on a full disk.
esp_fault_test(metrics_test.py CLASSES KilledRanks FullDisk TIMEOUT 1200)
if(Python3_FOUND)
  esp_run_alone_if_long(faults.metrics.KilledRanks)
endif()
