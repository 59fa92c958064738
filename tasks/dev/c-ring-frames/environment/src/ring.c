#include "ring.h"

#include <string.h>

void ring_init(struct ring *ring, uint8_t *data, size_t capacity)
{
    ring->data = data;
    ring->capacity = capacity;
    ring->start = 0;
    ring->used = 0;
}

size_t ring_used(const struct ring *ring)
{
    return ring->used;
}

size_t ring_free(const struct ring *ring)
{
    return ring->capacity - ring->used;
}

int ring_write(struct ring *ring, const uint8_t *bytes, size_t count)
{
    size_t end, first;

    if (count > ring_free(ring))
        return 0;
    if (count == 0)
        return 1;
    end = (ring->start + ring->used) % ring->capacity;
    first = ring->capacity - end;
    if (first > count)
        first = count;
    memcpy(ring->data + end, bytes, first);
    memcpy(ring->data, bytes + first, count - first);
    ring->used += count;
    return 1;
}

size_t ring_peek(const struct ring *ring, size_t offset, uint8_t *bytes, size_t count)
{
    size_t from;

    if (offset >= ring->used)
        return 0;
    from = (ring->start + offset) % ring->capacity;
    if (count > ring->used - offset)
        count = ring->used - offset;
    if (count > ring->capacity - from)
        count = ring->capacity - from;
    memcpy(bytes, ring->data + from, count);
    return count;
}

size_t ring_drop(struct ring *ring, size_t count)
{
    if (count > ring->used)
        count = ring->used;
    ring->used -= count;
    ring->start = ring->used == 0 ? 0 : (ring->start + count) % ring->capacity;
    return count;
}
