/* Adds 5 ms to every fsync, for `make slow-disk`: cc -shared -fPIC -o slow_fsync.so slow_fsync.c -ldl */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slowly(const char *name, int file)
{
    struct timespec delay = {0, 5 * 1000 * 1000};
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    nanosleep(&delay, 0);
    return real(file);
}

int fsync(int file) { return slowly("fsync", file); }

int fdatasync(int file) { return slowly("fdatasync", file); }
