/* Runs several ranks in one process from one thread, as a program with several devices does. Calls that wait for other
 * ranks are made between esp_group_begin and esp_group_end. Without environment variables, the process is a world of
 * `devices` ranks. With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, it is one of several such processes. */
#include <espalier/collectives.h>

#include <stdio.h>
#include <stdlib.h>

enum { devices = 3, count = 4096 };

static void check(esp_result result) {
  if (result == ESP_OK) return;
  fprintf(stderr, "%s\n", esp_last_error());
  exit(result);
}

static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}

int main(void) {
  int process = number("RANK", 0), processes = number("WORLD_SIZE", 1);
  const char* address = getenv("MASTER_ADDR");
  esp_comm* comms[devices] = {NULL};
  float *in[devices], *out[devices];
  for (int i = 0; i < devices; ++i) {
    in[i] = malloc(count * sizeof(float));
    out[i] = malloc(count * sizeof(float));
    if (!in[i] || !out[i]) return 1;
    for (int k = 0; k < count; ++k) in[i][k] = (float)(process * devices + i + k);
  }

  if (processes == 1) {
    check(esp_init_local(devices, "timeout_s=30", comms));
  } else {
    check(esp_group_begin());
    for (int i = 0; i < devices; ++i)
      check(esp_init_rank(process * devices + i, processes * devices, address, number("MASTER_PORT", 29500), NULL,
                          "timeout_s=30", &comms[i]));
    check(esp_group_end());
  }

  check(esp_group_begin());
  for (int i = 0; i < devices; ++i) check(esp_all_reduce(comms[i], in[i], out[i], count, ESP_F32, ESP_SUM, NULL));
  check(esp_group_end());

  int size = esp_size(comms[0]), wrong = 0;
  for (int i = 0; i < devices; ++i)
    for (int k = 0; k < count; ++k) wrong += out[i][k] != (float)(size * (size - 1) / 2 + size * k);

  /* A ring of messages: each rank sends to the next rank and receives from the previous one. */
  check(esp_group_begin());
  for (int i = 0; i < devices; ++i) {
    int rank = esp_rank(comms[i]);
    check(esp_send(comms[i], in[i], count, ESP_F32, (rank + 1) % size, NULL));
    check(esp_recv(comms[i], out[i], count, ESP_F32, (rank + size - 1) % size, NULL));
  }
  check(esp_group_end());
  for (int i = 0; i < devices; ++i)
    for (int k = 0; k < count; ++k) wrong += out[i][k] != (float)((esp_rank(comms[i]) + size - 1) % size + k);

  check(esp_group_begin());
  for (int i = 0; i < devices; ++i) check(esp_finalize(comms[i]));
  check(esp_group_end());
  for (int i = 0; i < devices; ++i) {
    free(in[i]);
    free(out[i]);
  }
  if (wrong) {
    fprintf(stderr, "process %d: %d wrong elements\n", process, wrong);
    return 1;
  }
  printf("process %d: %d of %d ranks\n", process, (int)devices, size);
  return 0;
}
