# Stopped and looping ranks, silent errors, the launcher's death, many jobs at once.
esp_fault_test(stall_test.py CLASSES Stopped Looping Ending Quiet Straggling)
esp_fault_test(silent_test.py CLASSES Copies Products Equal)
esp_fault_test(flight_test.py CLASSES Timeline)
esp_fault_test(launcher_test.py CLASSES Launcher)
esp_fault_test(jobs_test.py CLASSES Jobs)
