/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target without a fuzzer: every file of the corpus, then seeded mutations of them and
 * inputs made up. usage: fuzz_x [CORPUS_DIR]
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUTS 20000u
#define INPUT_BYTES_MAX 4096u
#define FILES_MAX 256u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct file {
    unsigned char bytes[INPUT_BYTES_MAX];
    size_t size;
};

static struct file files[FILES_MAX];
static uint64_t seed = 1;

static uint64_t next(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return seed >> 20;
}

/* In memory of its exact size, so that a read beyond the end is seen. */
static void run(const unsigned char *bytes, size_t size)
{
    unsigned char *copy = malloc(size + (size == 0));
    if (copy != NULL) {
        memcpy(copy, bytes, size);
        (void)LLVMFuzzerTestOneInput(copy, size);
    }
    free(copy);
}

static size_t read_corpus(const char *path)
{
    size_t count = 0;
    DIR *directory = path != NULL ? opendir(path) : NULL;
    const struct dirent *entry = NULL;
    while (directory != NULL && count < FILES_MAX && (entry = readdir(directory)) != NULL) {
        char name[1024];
        (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(name, "rb") : NULL;
        if (file != NULL) {
            files[count].size = fread(files[count].bytes, 1, INPUT_BYTES_MAX, file);
            (void)fclose(file);
            count++;
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    return count;
}

static void mutate(struct file *file)
{
    for (uint64_t i = next() % 8u; i > 0 && file->size > 0; i--) {
        file->bytes[next() % file->size] = (unsigned char)next();
    }
    if (next() % 4u == 0) {
        file->size = next() % (file->size + 1u);
    }
}

int main(int argc, char **argv)
{
    static struct file input;
    const size_t count = read_corpus(argc > 1 ? argv[1] : NULL);
    for (size_t i = 0; i < count; i++) {
        run(files[i].bytes, files[i].size);
    }
    for (uint32_t i = 0; i < INPUTS; i++) {
        if (count > 0 && i % 4u != 0) {
            input = files[next() % count];
            mutate(&input);
        } else {
            input.size = next() % 600u;
            for (size_t k = 0; k < input.size; k++) {
                input.bytes[k] = (unsigned char)next();
            }
        }
        run(input.bytes, input.size);
    }
    printf("%zu files and %u inputs\n", count, INPUTS);
    return 0;
}
