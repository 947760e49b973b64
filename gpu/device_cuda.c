/* SPDX-License-Identifier: Apache-2.0 */
#include "device_private.h"

static enum status cuda_open(struct device *device, const struct device_options *options,
                             struct status_detail *detail)
{
    (void)device;
    (void)options;
    return status_fail(STATUS_NOT_FOUND, detail, 0, "this build has no CUDA backend");
}

const struct device_backend device_cuda = {.name = "cuda", .open = cuda_open};
