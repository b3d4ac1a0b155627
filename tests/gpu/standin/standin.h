/* Functions that the stand-ins for the CUDA driver and for NCCL share. See cuda.c. */
#pragma once
#include <stddef.h>

/* Runs `run(argument)` on the stream's thread, after all operations that were enqueued before. Aborts if
 * `stream` is not a stream of the current context. */
void standin_enqueue(void *stream, void (*run)(void *), void *argument, const char *who);

/* Aborts if `bytes` bytes from `address` are not inside one block of cuMemAlloc. */
void standin_check_device(const void *address, size_t bytes, const char *who);

/* The number of the GPU whose context is current. Aborts if no context is current. */
int standin_device(const char *who);

/* Prints a line and aborts the process. */
void standin_fail(const char *who, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
