/* Philox4x32-10 of the counters (row, column quad): uniforms (word + 1/2) / 2^32, exact in double.

   rows (count,), 64 bits each; out (4, count, quads), word by word. The same integers as
   ``philox4x32`` in torch operations. */

#include <stdint.h>

enum { ROUNDS = 10 };

void philox_uniforms(long count, long quads, const int64_t *restrict rows, uint32_t first_key,
                     uint32_t second_key, double *restrict out) {
    const long words = count * quads;
#pragma omp simd collapse(2)
    for (long r = 0; r < count; r++)
        for (long q = 0; q < quads; q++) {
            const uint64_t row = (uint64_t)rows[r];
            uint32_t a = (uint32_t)row, b = (uint32_t)(row >> 32), c = (uint32_t)q, d = 0;
            uint32_t k0 = first_key, k1 = second_key;
            for (int round = 0; round < ROUNDS; round++) {
                const uint64_t p = (uint64_t)a * 0xD2511F53u, s = (uint64_t)c * 0xCD9E8D57u;
                a = (uint32_t)(s >> 32) ^ b ^ k0;
                b = (uint32_t)s;
                c = (uint32_t)(p >> 32) ^ d ^ k1;
                d = (uint32_t)p;
                k0 += 0x9E3779B9u;
                k1 += 0xBB67AE85u;
            }
            double *const here = out + r * quads + q;
            here[0] = (a + 0.5) * 0x1p-32;
            here[words] = (b + 0.5) * 0x1p-32;
            here[2 * words] = (c + 0.5) * 0x1p-32;
            here[3 * words] = (d + 0.5) * 0x1p-32;
        }
}
