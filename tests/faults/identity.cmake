# Run files, data, tokenizers and binaries that are not the same everywhere.
esp_fault_test(identity_test.py CLASSES Ranks AllRanks EditedRunFile ChangedText Restarts DeletedFolder TIMEOUT 600)
