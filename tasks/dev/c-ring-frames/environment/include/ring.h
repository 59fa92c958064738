/* A ring buffer of bytes over memory that the caller owns. */
#ifndef RING_H
#define RING_H

#include <stddef.h>
#include <stdint.h>

struct ring {
    uint8_t *data;
    size_t capacity;
    size_t start; /* index of the oldest byte */
    size_t used;
};

void ring_init(struct ring *ring, uint8_t *data, size_t capacity);

/* How many bytes are in it, and how many more fit. */
size_t ring_used(const struct ring *ring);
size_t ring_free(const struct ring *ring);

/* Appends `count` bytes if they all fit: 1, else nothing: 0. */
int ring_write(struct ring *ring, const uint8_t *bytes, size_t count);

/* Copies up to `count` bytes, beginning `offset` bytes after the oldest, without taking them out; how many it copied. */
size_t ring_peek(const struct ring *ring, size_t offset, uint8_t *bytes, size_t count);

/* Takes up to `count` of the oldest bytes out; how many. */
size_t ring_drop(struct ring *ring, size_t count);

#endif
