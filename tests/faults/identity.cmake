# Run files, data, tokenizers and binaries that differ between ranks.
esp_fault_test(identity_test.py CLASSES MismatchedRanks AllRanks EditedRunFile ChangedText Restarts DeletedFolder TIMEOUT 1200)
if(Python3_FOUND)
  esp_run_alone_if_long(faults.identity.AllRanks)
endif()
