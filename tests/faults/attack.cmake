# Strangers at the door, and what a job shows them.
esp_fault_test(attack_test.py CLASSES Strangers Authenticated Shown Names Sealed Linked)
