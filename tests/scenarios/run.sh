#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs every scenario. usage: run.sh STATEROOM [OPTIONS of stateroom scenario]
set -eu
stateroom=$1
shift
cd "$(dirname "$0")"
exec "$stateroom" scenario "$@" */*.scn
