/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the peer link, looked at before anything is opened. */
#include "fabric/peer.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a Unix socket's address has room for, with its zero. */
#define IPC_PATH_BYTES_MAX 107u

static bool loopback(const char *host)
{
    struct in_addr four;
    struct in6_addr six;
    if (strcmp(host, "localhost") == 0) {
        return true;
    }
    if (inet_pton(AF_INET, host, &four) == 1) {
        return ntohl(four.s_addr) >> 24 == 127u;
    }
    return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

/* "HOST:PORT" or "[V6]:PORT"; false: it is neither. */
static bool split(const char *text, char *host, size_t size)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    if (colon == NULL || colon == text || colon[1] < '0' || colon[1] > '9') {
        return false;
    }
    const unsigned long port = strtoul(colon + 1, &end, 10);
    size_t length = (size_t)(colon - text);
    if (*end != '\0' || port == 0 || port > 65535u || length >= size) {
        return false;
    }
    const bool bracketed = text[0] == '[' && colon[-1] == ']';
    if (bracketed) {
        text++;
        length -= 2u;
    }
    memcpy(host, text, length);
    host[length] = '\0';
    /* A second colon without brackets would leave the port in doubt. */
    return length > 0 && (bracketed || strchr(host, ':') == NULL);
}

enum status peer_address_check(const char *address, bool listening, bool insecure,
                               struct status_detail *out_detail)
{
    char host[256];
    const bool ipc = strncmp(address, "ipc://", 6) == 0;
    const size_t path = ipc ? strlen(address) - 6u : 0;
    const bool tcp = strncmp(address, "tcp://", 6) == 0 && split(address + 6, host, sizeof host);
    if (!tcp && (!ipc || path == 0 || path > IPC_PATH_BYTES_MAX)) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                           "'%s' is not an address: write tcp://HOST:PORT (port 1 to 65535) or "
                           "ipc://PATH (at most %u bytes)",
                           address, IPC_PATH_BYTES_MAX);
    }
    if (listening && tcp && !insecure && !loopback(host)) {
        return status_fail(STATUS_FABRIC_BIND, out_detail, 0,
                           "address %s is reachable from other hosts and nothing there is "
                           "encrypted or authenticated; listen on 127.0.0.1, or write "
                           "`insecure: true` if the network is trusted",
                           address);
    }
    return STATUS_OK;
}
