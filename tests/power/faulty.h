/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by a test and the node that it makes fail. */
#ifndef TESTS_POWER_FAULTY_H
#define TESTS_POWER_FAULTY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct faulty_switch {
    _Atomic uint32_t one_in; /* 0: no call fails; n: every n-th does */
    _Atomic uint32_t error;  /* errno */
    _Atomic uint32_t calls;
    _Atomic uint32_t failed;
};

#endif
