#include "ring.h"
#include "tap.h"

TEST(bytes_come_out_in_order)
{
    uint8_t memory[8], out[8] = {0};
    struct ring ring;

    ring_init(&ring, memory, sizeof memory);
    CHECK(ring_write(&ring, (const uint8_t *)"abc", 3));
    CHECK_INT(ring_peek(&ring, 1, out, 8), 2);
    CHECK_STR((char *)out, "bc");
    CHECK_INT(ring_drop(&ring, 2), 2);
    CHECK_INT(ring_used(&ring), 1);
}

TEST(a_full_ring_takes_nothing)
{
    uint8_t memory[4];
    struct ring ring;

    ring_init(&ring, memory, sizeof memory);
    CHECK(!ring_write(&ring, (const uint8_t *)"abcde", 5));
    CHECK(ring_write(&ring, (const uint8_t *)"abcd", 4));
    CHECK_INT(ring_free(&ring), 0);
}
