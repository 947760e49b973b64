/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assertions that stay on in every build. A failed one is a bug of ours: sm_assert_fail traps
 * unless the host program supplies its own (which must not return).
 */
#ifndef STATEMACHINE_SM_ASSERT_H
#define STATEMACHINE_SM_ASSERT_H

_Noreturn void sm_assert_fail(const char *condition, const char *file, int line);

#define SM_ASSERT(condition) \
    ((condition) ? (void)0 : sm_assert_fail(#condition, __FILE__, __LINE__))
#define SM_IMPLIES(a, b) SM_ASSERT(!(a) || (b))
#define SM_UNREACHABLE() sm_assert_fail("unreachable", __FILE__, __LINE__)

#endif
