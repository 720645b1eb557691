# Stopped and looping ranks, silent errors, a killed launcher, many jobs at once.
# Detection of a straggler depends on other load, so class Stragglers is run by hand.
esp_fault_test(stall_test.py CLASSES StoppedRank LoopingRank StallTimeout FalseReports)
esp_fault_test(silent_test.py CLASSES FlippedBits WrongGemms EqualReplicas)
esp_fault_test(flight_test.py CLASSES Timeline)
esp_fault_test(launcher_test.py CLASSES Launcher)
esp_fault_test(jobs_test.py CLASSES Jobs)
