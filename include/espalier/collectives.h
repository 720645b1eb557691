/* Espalier collectives: the C interface.
 *
 * A communicator joins `size` ranks, numbered from 0. Every rank makes the same calls in the same order. Ranks are
 * processes, threads, or several of one thread (between esp_group_begin and esp_group_end).
 *
 * Counts are elements. In place means in == out, or for all_gather and reduce_scatter the rank's own part of the larger
 * buffer. Every collective takes an esp_work**: NULL blocks until done; otherwise the call returns at once, buffers
 * must stay as they are until the work is done, and the work is to be freed. Every wait has a deadline (option
 * timeout_s).
 *
 * Every function that can fail returns ESP_OK or why not; esp_last_error has the message of this thread's last failure.
 * After ESP_ERROR_COMM a communicator is dead: it repeats its error until it is finalized.
 *
 * One thread at a time may use a communicator; different communicators are independent. The interface only grows: what
 * is here keeps its name, meaning and values. */
#ifndef ESPALIER_COLLECTIVES_H
#define ESPALIER_COLLECTIVES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ESP_API __attribute__((visibility("default")))
#else
#define ESP_API
#endif

#define ESP_API_VERSION 1
/* The ESP_API_VERSION the library was built with, and its release as text. */
ESP_API int esp_api_version(void);
ESP_API const char* esp_version(void);

typedef enum esp_result {
  ESP_OK = 0,
  ESP_ERROR_INTERNAL = 1, /* our bug */
  ESP_ERROR_USAGE = 2,    /* a wrong argument; nothing was sent */
  ESP_ERROR_COMM = 3,     /* a peer was lost, fell silent, or called something else */
  ESP_ERROR_FILES = 4,    /* a file: the secret's, for one */
  ESP_NOT_DONE = 5        /* esp_work_wait gave up waiting; the call goes on */
} esp_result;

/* Plain ints, so that a value from elsewhere is an error and not undefined. */
typedef int esp_dtype;
enum {
  ESP_F64 = 0,
  ESP_F32 = 1,
  ESP_BF16 = 2,
  ESP_F16 = 3,
  ESP_I64 = 4,
  ESP_I32 = 5,
  ESP_I16 = 6,
  ESP_I8 = 7,
  ESP_U8 = 8
};

typedef int esp_op;
enum { ESP_SUM = 0, ESP_PROD = 1, ESP_MIN = 2, ESP_MAX = 3, ESP_AVG = 4 };

typedef struct esp_comm esp_comm;
typedef struct esp_work esp_work;

/* The message of this thread's last failed call; empty when none failed. Valid until its next failed call. */
ESP_API const char* esp_last_error(void);
/* The rank blamed for it, or -1. */
ESP_API int esp_last_error_rank(void);

/* -- making and ending ------------------------------------------------------------------------------------------------
 * `options` is NULL or "key=value;key=value": timeout_s (60; of one call), start_timeout_s (600; every wait while ranks
 * start and find each other), link_timeout_s (30; a host that does not answer for so long is lost), transport (auto),
 * algorithms (all_reduce=ring,…), slice_bytes, shape (4x2), interface, streams_per_peer. ESPALIER_START_TIMEOUT_S and
 * ESPALIER_LINK_TIMEOUT_S set the two as well. */

/* Joins the job the environment describes: RANK WORLD_SIZE MASTER_ADDR MASTER_PORT as torchrun sets them, or Slurm's,
 * or an MPI's with MASTER_ADDR; the port may be another program's. ESPALIER_SECRET_FILE for several hosts. Without any
 * of them: a world of one. */
ESP_API esp_result esp_init(const char* options, esp_comm** comm);
/* The same, told directly. Rank 0 listens at address and port. secret_file: a 0600 file with the job's secret; NULL on
 * one host takes the user's own. */
ESP_API esp_result esp_init_rank(int rank, int size, const char* address, int port, const char* secret_file,
                                 const char* options, esp_comm** comm);
/* A whole world inside this process: fills comms[0] to comms[num_ranks - 1]. */
ESP_API esp_result esp_init_local(int num_ranks, const char* options, esp_comm** comms);
/* Collective. Ranks with one colour form a communicator, ordered by key, then rank; colour < 0 gets NULL. */
ESP_API esp_result esp_split(esp_comm* comm, int colour, int key, esp_comm** child);
/* Ends all calls under way on every rank with ESP_ERROR_COMM. Any thread may call. */
ESP_API esp_result esp_abort(esp_comm* comm, const char* why);
/* Frees the communicator, its memory and its threads. NULL is fine. */
ESP_API esp_result esp_finalize(esp_comm* comm);

ESP_API int esp_rank(const esp_comm* comm);
ESP_API int esp_size(const esp_comm* comm);

/* Collective. Memory that all ranks of one host map, so that collectives on it need no copy on the way. Freed by
 * esp_free or with the communicator. */
ESP_API esp_result esp_allocate(esp_comm* comm, size_t bytes, void** memory);
ESP_API esp_result esp_free(esp_comm* comm, void* memory);

/* -- collectives ------------------------------------------------------------------------------------------------------
 */

ESP_API esp_result esp_broadcast(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int root, esp_work** work);
/* out is written on the root only and may be NULL elsewhere. */
ESP_API esp_result esp_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op,
                              int root, esp_work** work);
ESP_API esp_result esp_all_reduce(esp_comm* comm, const void* in, void* out, size_t count, esp_dtype dtype, esp_op op,
                                  esp_work** work);
/* in: recv_count elements for every rank; out: this rank's. */
ESP_API esp_result esp_reduce_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype,
                                      esp_op op, esp_work** work);
ESP_API esp_result esp_all_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype,
                                  esp_work** work);
ESP_API esp_result esp_gather(esp_comm* comm, const void* in, void* out, size_t send_count, esp_dtype dtype, int root,
                              esp_work** work);
ESP_API esp_result esp_scatter(esp_comm* comm, const void* in, void* out, size_t recv_count, esp_dtype dtype, int root,
                               esp_work** work);
ESP_API esp_result esp_all_to_all(esp_comm* comm, const void* in, void* out, size_t count_per_rank, esp_dtype dtype,
                                  esp_work** work);
/* One count and one offset per rank, in elements. Inside a group the arrays must stay until esp_group_end. */
ESP_API esp_result esp_all_to_all_v(esp_comm* comm, const void* in, const size_t* send_counts,
                                    const size_t* send_offsets, void* out, const size_t* recv_counts,
                                    const size_t* recv_offsets, esp_dtype dtype, esp_work** work);
ESP_API esp_result esp_send(esp_comm* comm, const void* data, size_t count, esp_dtype dtype, int peer, esp_work** work);
ESP_API esp_result esp_recv(esp_comm* comm, void* data, size_t count, esp_dtype dtype, int peer, esp_work** work);
ESP_API esp_result esp_barrier(esp_comm* comm, esp_work** work);
/* A signal counts up at the peer without waiting for it; a wait takes one. */
ESP_API esp_result esp_signal(esp_comm* comm, int peer);
ESP_API esp_result esp_wait(esp_comm* comm, int peer, esp_work** work);

/* -- work under way ---------------------------------------------------------------------------------------------------
 */

/* Waits at most timeout_s seconds (negative: as long as the call itself may take) and says how the call ended. */
ESP_API esp_result esp_work_wait(esp_work* work, double timeout_s);
/* *done is 1 once the call has ended; ESP_OK says nothing about how, esp_work_wait does. */
ESP_API esp_result esp_work_test(esp_work* work, int* done);
/* The call itself goes on. NULL is fine. */
ESP_API esp_result esp_work_free(esp_work* work);

/* -- groups -----------------------------------------------------------------------------------------------------------
 * Calls of this thread between begin and end are made together: sends and receives cannot block each other, and one
 * thread can drive several local ranks. Communicators may be made, split, finalized and given memory in a group too;
 * results are there after esp_group_end. Blocking calls are waited for in esp_group_end. */
ESP_API esp_result esp_group_begin(void);
ESP_API esp_result esp_group_end(void);

#ifdef __cplusplus
}
#endif

#endif
