# Stopped and looping ranks, silent errors, the launcher's death, many jobs at once.
# How slow a neighbour makes a rank decides when a straggler is named, so Straggling is run by hand.
esp_fault_test(stall_test.py CLASSES Stopped Looping Ending Quiet)
esp_fault_test(silent_test.py CLASSES Copies Products Equal)
esp_fault_test(flight_test.py CLASSES Timeline)
esp_fault_test(launcher_test.py CLASSES Launcher)
esp_fault_test(jobs_test.py CLASSES Jobs)
