// A plugin that passes everything on to another one, and fails where the environment asks for it.
//
// FAULTY_PLUGIN_OF     the path of the other one
// FAULTY_OPTION        an option of the compiler that this one does not know
// FAULTY_LAUNCH        a file: while it is there, a launch on several devices takes it away and fails, inside the plugin
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { size_t size; void *extensions; size_t version_size; void *version_extensions; int major, minor; void *table[512]; } Api;
typedef struct { size_t size; void *extension; void *error; const char *message; size_t message_size; } Message;
typedef struct { size_t size; void *extension; void *error; int code; } Code;
typedef struct { size_t size; void *extension; void *client; void *program; const char *options; size_t options_size; void *executable; } Compile;
typedef struct { size_t size; void *extension; void *executable; void *options; void *const *const *arguments; size_t num_devices, num_args; } Execute;
typedef void *(*Function)(void *);

enum { ERROR_DESTROY = 0, ERROR_MESSAGE = 1, ERROR_CODE = 2, COMPILE = 20, EXECUTE = 55 };
static Api api;
static const Api *real;
static char fault[256];

static void *call(int which, void *args) { return ((Function)real->table[which])(args); }

static void *destroy(void *args) { return ((Code *)args)->error == fault ? NULL : call(ERROR_DESTROY, args); }

static void *message(void *args) {
    Message *of = args;
    if (of->error != fault) return call(ERROR_MESSAGE, args);
    of->message = fault;
    of->message_size = strlen(fault);
    return NULL;
}

static void *code(void *args) {
    Code *of = args;
    if (of->error != fault) return call(ERROR_CODE, args);
    of->code = 3;
    return NULL;
}

static void *compile(void *args) {
    Compile *of = args;
    const char *option = getenv("FAULTY_OPTION");
    if (option && memmem(of->options, of->options_size, option, strlen(option))) {
        snprintf(fault, sizeof fault, "No such compile option: '%s'", option);
        return fault;
    }
    return call(COMPILE, args);
}

static void *execute(void *args) {
    Execute *of = args;
    const char *file = getenv("FAULTY_LAUNCH");
    if (!file || of->num_devices < 2 || of->num_devices > 64 || unlink(file) != 0) return call(EXECUTE, args);
    // The second device is given what lies on the first: the plugin's own checks fail there.
    void *const *lists[64];
    memcpy(lists, of->arguments, of->num_devices * sizeof *lists);
    lists[1] = lists[0];
    of->arguments = lists;
    return call(EXECUTE, args);
}

const Api *GetPjrtApi(void) {
    void *library = dlopen(getenv("FAULTY_PLUGIN_OF"), RTLD_NOW | RTLD_LOCAL);
    const Api *(*get)(void) = library ? (const Api *(*)(void))dlsym(library, "GetPjrtApi") : NULL;
    real = get ? get() : NULL;
    if (!real) return NULL;
    memcpy(&api, real, real->size < sizeof api ? real->size : sizeof api);
    api.table[ERROR_DESTROY] = destroy;
    api.table[ERROR_MESSAGE] = message;
    api.table[ERROR_CODE] = code;
    api.table[COMPILE] = compile;
    api.table[EXECUTE] = execute;
    return &api;
}
