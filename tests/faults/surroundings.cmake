# Clocks that jump, control groups, system calls that are refused.
add_library(clock_shim SHARED clock_shim.c)
esp_fault_test(surroundings_test.py ENVIRONMENT "CLOCK_SHIM=$<TARGET_FILE:clock_shim>" CLASSES Clock Memory Refused)
