/* Every rank contributes a vector and gets the sum of all. Start it as several ranks:
 *   RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ./all_reduce &
 *   RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 ./all_reduce */
#include <espalier/collectives.h>

#include <stdio.h>
#include <stdlib.h>

static void check(esp_result result) {
  if (result == ESP_OK) return;
  fprintf(stderr, "%s\n", esp_last_error());
  exit(result);
}

int main(void) {
  esp_comm* comm = NULL;
  check(esp_init("timeout_s=30", &comm));
  int rank = esp_rank(comm), size = esp_size(comm);

  enum { count = 100003 };
  float* data = malloc(count * sizeof(float));
  if (!data) return 1;
  for (int i = 0; i < count; ++i) data[i] = (float)(i % 100 + rank);
  check(esp_all_reduce(comm, data, data, count, ESP_F32, ESP_SUM, NULL));
  for (int i = 0; i < count; ++i) {
    float expected = (float)(size * (i % 100) + size * (size - 1) / 2);
    if (data[i] != expected) {
      fprintf(stderr, "rank %d: element %d: got %g; expected %g\n", rank, i, data[i], expected);
      return 1;
    }
  }

  /* Two calls in flight at once. They may be waited for in any order. */
  double mine[2] = {rank + 1.0, rank + 2.0}, most[2] = {0, 0}, mean[2] = {0, 0};
  esp_work *first = NULL, *second = NULL;
  check(esp_all_reduce(comm, mine, most, 2, ESP_F64, ESP_MAX, &first));
  check(esp_all_reduce(comm, mine, mean, 2, ESP_F64, ESP_AVG, &second));
  check(esp_work_wait(second, -1));
  check(esp_work_wait(first, -1));
  esp_work_free(first);
  esp_work_free(second);
  if (most[0] != size || mean[0] != (size + 1) / 2.0) {
    fprintf(stderr, "rank %d: got max %g and mean %g\n", rank, most[0], mean[0]);
    return 1;
  }

  printf("rank %d of %d: %d elements summed\n", rank, size, (int)count);
  free(data);
  check(esp_finalize(comm));
  return 0;
}
