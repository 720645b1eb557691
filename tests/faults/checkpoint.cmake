# Checkpoints with power loss, flipped bits and full disks.
add_library(checkpoint_shim SHARED checkpoint_shim.c)
add_executable(checkpoint_probe checkpoint_probe.cpp)
target_link_libraries(checkpoint_probe PRIVATE esp_ckpt esp_flags)
set(ckpt_fault_tools "CHECKPOINT_SHIM=$<TARGET_FILE:checkpoint_shim>" "CHECKPOINT_PROBE=$<TARGET_FILE:checkpoint_probe>")
esp_fault_test(checkpoint_cut_test.py ENVIRONMENT ${ckpt_fault_tools} CLASSES PowerCut)
esp_fault_test(checkpoint_damage_test.py ENVIRONMENT ${ckpt_fault_tools} CLASSES BitFlips DiskErrors MaliciousFolders OldFormats)
