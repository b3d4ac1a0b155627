/* A stand-in for the CUDA driver, libcuda.so.1, on machines without a GPU.
 *
 * It checks the order and the arguments of the calls that crates/burn-mpi-nccl makes. It does not show
 * that these calls work on a GPU. Device memory is host memory. A stream is a thread that runs its
 * operations late. A result that is read too early, or memory that is overwritten too early, therefore
 * shows as a wrong value. A wrong call prints a line and aborts the process.
 *
 * STANDIN_GPUS: the number of GPUs (default: 1). STANDIN_DELAY_US: the longest delay of an operation
 * (default: 200).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600 };
enum { MOST_GPUS = 16, DEEPEST = 8, NON_BLOCKING = 1 };

struct task {
  void (*run)(void *);
  void *argument;
  struct task *next;
};

struct stream {
  struct stream *next;
  int device;
  unsigned flags;
  pthread_t thread;
  struct task *first, *last;
  long enqueued, complete;
  int ends;
};

struct event {
  int device;
  struct stream *stream; /* NULL before the first record */
  long number;
};

struct block {
  char *start;
  size_t bytes;
  int on_device;
  struct block *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream *streams;
static struct block *blocks;
static int started;
static int contexts[MOST_GPUS]; /* how often each GPU's context is retained; the element's address is the handle */
static __thread int *stack[DEEPEST];
static __thread int depth;

static long number_of(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

void standin_fail(const char *who, const char *format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "stand-in: %s: %s\n", who, line);
  abort();
}

int standin_device(const char *who) {
  if (!started) standin_fail(who, "before cuInit");
  if (depth == 0) standin_fail(who, "no context is current");
  return (int)(stack[depth - 1] - contexts);
}

static void check_block(const void *address, size_t bytes, int on_device, const char *who) {
  const char *from = address;
  pthread_mutex_lock(&lock);
  struct block *block = blocks;
  while (block && !(block->on_device == on_device && from >= block->start && from + bytes <= block->start + block->bytes))
    block = block->next;
  pthread_mutex_unlock(&lock);
  if (!block) standin_fail(who, "%zu bytes at %p are in no block of %s memory", bytes, address, on_device ? "device" : "pinned");
}

void standin_check_device(const void *address, size_t bytes, const char *who) { check_block(address, bytes, 1, who); }

/* ---- devices and contexts ---- */

int cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  started = 1;
  return number_of("STANDIN_GPUS", 1) > 0 ? SUCCESS : NO_DEVICE;
}

int cuGetErrorName(int code, const char **text) {
  *text = code == INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
          : code == INVALID_DEVICE  ? "CUDA_ERROR_INVALID_DEVICE"
          : code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                    : NULL;
  return *text ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetCount(int *count) {
  if (!started) standin_fail("cuDeviceGetCount", "before cuInit");
  long gpus = number_of("STANDIN_GPUS", 1);
  *count = gpus < MOST_GPUS ? (int)gpus : MOST_GPUS;
  return SUCCESS;
}

int cuDeviceGet(int *device, int number) {
  int count;
  cuDeviceGetCount(&count);
  if (number < 0 || number >= count) return INVALID_DEVICE;
  *device = number;
  return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
  snprintf(name, (size_t)length, "stand-in %d", device);
  return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int device) {
  memset(uuid, 0x5a, 16);
  uuid[15] = (unsigned char)device;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  contexts[device]++;
  *context = &contexts[device];
  return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
  int *at = context;
  if (at < contexts || at >= contexts + MOST_GPUS || *at == 0) standin_fail("cuCtxPushCurrent", "not a retained context");
  if (depth == DEEPEST) standin_fail("cuCtxPushCurrent", "contexts are pushed and not popped");
  stack[depth++] = at;
  return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
  if (depth == 0) standin_fail("cuCtxPopCurrent", "no context is current");
  *context = stack[--depth];
  return SUCCESS;
}

/* ---- streams and events ---- */

static void *serve(void *argument) {
  struct stream *stream = argument;
  unsigned seed = (unsigned)getpid();
  long delay = number_of("STANDIN_DELAY_US", 200);
  pthread_mutex_lock(&lock);
  while (!stream->ends) {
    struct task *task = stream->first;
    if (!task) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    pthread_mutex_unlock(&lock);
    if (delay > 0) usleep((useconds_t)(rand_r(&seed) % delay));
    task->run(task->argument);
    pthread_mutex_lock(&lock);
    stream->first = task->next;
    if (!stream->first) stream->last = NULL;
    stream->complete++;
    free(task);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static struct stream *stream_of(void *handle, const char *who) {
  int device = standin_device(who);
  pthread_mutex_lock(&lock);
  struct stream *stream = streams;
  while (stream && stream != handle) stream = stream->next;
  pthread_mutex_unlock(&lock);
  if (!stream) standin_fail(who, "not a stream");
  if (stream->device != device) standin_fail(who, "a stream of GPU %d, and the context is of GPU %d", stream->device, device);
  return stream;
}

void standin_enqueue(void *handle, void (*run)(void *), void *argument, const char *who) {
  struct stream *stream = stream_of(handle, who);
  struct task *task = calloc(1, sizeof *task);
  *task = (struct task){run, argument, NULL};
  pthread_mutex_lock(&lock);
  if (stream->last) stream->last->next = task;
  else stream->first = task;
  stream->last = task;
  stream->enqueued++;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

int cuStreamCreate(void **handle, unsigned flags) {
  struct stream *stream = calloc(1, sizeof *stream);
  stream->device = standin_device("cuStreamCreate");
  if (flags != NON_BLOCKING) standin_fail("cuStreamCreate", "flags %u: the stream would wait for other libraries'", flags);
  pthread_mutex_lock(&lock);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&lock);
  pthread_create(&stream->thread, NULL, serve, stream);
  *handle = stream;
  return SUCCESS;
}

int cuStreamDestroy_v2(void *handle) {
  struct stream *stream = stream_of(handle, "cuStreamDestroy");
  pthread_mutex_lock(&lock);
  if (stream->first) standin_fail("cuStreamDestroy", "operations are in flight");
  struct stream **at = &streams;
  while (*at != stream) at = &(*at)->next;
  *at = stream->next;
  stream->ends = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  pthread_join(stream->thread, NULL);
  return SUCCESS;
}

int cuEventCreate(void **handle, unsigned flags) {
  struct event *event = calloc(1, sizeof *event);
  event->device = standin_device("cuEventCreate");
  (void)flags;
  *handle = event;
  return SUCCESS;
}

int cuEventRecord(void *handle, void *of) {
  struct event *event = handle;
  struct stream *stream = stream_of(of, "cuEventRecord");
  if (event->device != stream->device) standin_fail("cuEventRecord", "an event of another GPU");
  pthread_mutex_lock(&lock);
  event->stream = stream;
  event->number = stream->enqueued;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

int cuEventQuery(void *handle) {
  struct event *event = handle;
  standin_device("cuEventQuery");
  pthread_mutex_lock(&lock);
  int done = !event->stream || event->stream->complete >= event->number;
  pthread_mutex_unlock(&lock);
  return done ? SUCCESS : NOT_READY;
}

int cuEventDestroy_v2(void *handle) {
  standin_device("cuEventDestroy");
  free(handle);
  return SUCCESS;
}

/* ---- memory ---- */

static char *allocate(size_t bytes, int on_device) {
  struct block *block = calloc(1, sizeof *block);
  *block = (struct block){malloc(bytes), bytes, on_device, NULL};
  memset(block->start, 0xab, bytes); /* so that reading unwritten memory gives wrong values */
  pthread_mutex_lock(&lock);
  block->next = blocks;
  blocks = block;
  pthread_mutex_unlock(&lock);
  return block->start;
}

static int release(char *start, int on_device, const char *who) {
  standin_device(who);
  pthread_mutex_lock(&lock);
  for (struct stream *stream = streams; stream; stream = stream->next)
    if (stream->first) standin_fail(who, "operations are in flight");
  struct block **at = &blocks;
  while (*at && !((*at)->start == start && (*at)->on_device == on_device)) at = &(*at)->next;
  struct block *block = *at;
  if (!block) standin_fail(who, "not a block, or freed before");
  *at = block->next;
  pthread_mutex_unlock(&lock);
  memset(block->start, 0xcd, block->bytes);
  free(block->start);
  free(block);
  return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  standin_device("cuMemAlloc");
  if (bytes == 0) return INVALID_VALUE;
  *address = (uint64_t)(uintptr_t)allocate(bytes, 1);
  return SUCCESS;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  standin_device("cuMemHostAlloc");
  (void)flags;
  if (bytes == 0) return INVALID_VALUE;
  *address = allocate(bytes, 0);
  return SUCCESS;
}

int cuMemFree_v2(uint64_t address) { return release((char *)(uintptr_t)address, 1, "cuMemFree"); }
int cuMemFreeHost(void *address) { return release(address, 0, "cuMemFreeHost"); }

struct copy {
  char *to;
  const char *from;
  size_t bytes;
  uint64_t sum; /* of the bytes to copy to the GPU, taken when the copy is enqueued */
};

static uint64_t sum_of(const char *bytes, size_t length) {
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i + 8 <= length; i += 8) {
    uint64_t word;
    memcpy(&word, bytes + i, 8);
    sum = (sum ^ word) * 1099511628211u;
  }
  for (size_t i = length / 8 * 8; i < length; i++) sum = (sum ^ (unsigned char)bytes[i]) * 1099511628211u;
  return sum;
}

static void copy(void *argument) {
  struct copy *copy = argument;
  if (copy->sum && sum_of(copy->from, copy->bytes) != copy->sum)
    standin_fail("cuMemcpyHtoDAsync", "the memory was changed before the copy ran");
  memcpy(copy->to, copy->from, copy->bytes);
  free(copy);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  check_block((void *)(uintptr_t)to, bytes, 1, "cuMemcpyHtoDAsync");
  check_block(from, bytes, 0, "cuMemcpyHtoDAsync");
  struct copy *task = calloc(1, sizeof *task);
  *task = (struct copy){(char *)(uintptr_t)to, from, bytes, sum_of(from, bytes)};
  standin_enqueue(stream, copy, task, "cuMemcpyHtoDAsync");
  return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  check_block((void *)(uintptr_t)from, bytes, 1, "cuMemcpyDtoHAsync");
  check_block(to, bytes, 0, "cuMemcpyDtoHAsync");
  struct copy *task = calloc(1, sizeof *task);
  *task = (struct copy){to, (char *)(uintptr_t)from, bytes, 0};
  standin_enqueue(stream, copy, task, "cuMemcpyDtoHAsync");
  return SUCCESS;
}
