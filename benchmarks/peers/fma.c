/* The machine's bare peak: independent fused multiply-adds in registers. Arguments: how many threads, and how many
   billions of float operations each of them does. cc -O3 -march=native -ffp-contract=fast -pthread */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH 8
#endif
#define CHAINS 12

typedef float lanes __attribute__((vector_size(4 * WIDTH)));

static long turns;

static void *multiply_and_add(void *result) {
    lanes sum[CHAINS], factor, term;
    for (int lane = 0; lane < WIDTH; lane++) factor[lane] = 0.999f, term[lane] = 0.001f;
    for (int chain = 0; chain < CHAINS; chain++) sum[chain] = term * (float)chain;
    for (long turn = 0; turn < turns; turn++) {
#pragma GCC unroll 12
        for (int chain = 0; chain < CHAINS; chain++) sum[chain] = sum[chain] * factor + term;
    }
    for (int chain = 1; chain < CHAINS; chain++) sum[0] += sum[chain];
    *(float *)result = sum[0][0];
    return NULL;
}

int main(int count, char **words) {
    if (count < 3) return 1;
    int cores = atoi(words[1]);
    turns = atol(words[2]) * 1000000000L / (2 * WIDTH * CHAINS);
    pthread_t threads[cores];
    float results[cores];
    for (int i = 0; i < cores; i++) pthread_create(&threads[i], NULL, multiply_and_add, &results[i]);
    for (int i = 0; i < cores; i++) pthread_join(threads[i], NULL);
    printf("%f\n", results[0]);
    return 0;
}
