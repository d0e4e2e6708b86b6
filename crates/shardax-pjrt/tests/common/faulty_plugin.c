// A plugin that forwards calls to another plugin, and fails on demand of the environment.
//
// FAULTY_PLUGIN_OF     the path of the other one
// FAULTY_OPTION        an option of the compiler that this one does not know
// FAULTY_LAUNCH        a file: while it is there, a launch on several devices takes it away and fails, inside the plugin
// FAULTY_EXECUTE       every launch has no "memory", "hang"s or "crash"es
// FAULTY_MEMORY        a bit of the first element of everything that the host reads is another
// FAULTY_EXTENSIONS    "none": it has none, as a plugin that only runs programs
// FAULTY_SLICE         the second half of the devices is another process's, as on a slice of TPUs whose plugin brings the
//                      processes together; a launch with its devices fails, and says on how many of this process
// FAULTY_PROFILER      it has a recorder, of one kernel on a GPU: "records", "records into ours", where the caller has the
//                      memory, "fails" when it is started, or "fails at its end"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { size_t size; void *extensions; size_t version_size; void *version_extensions; int major, minor; void *table[512]; } Api;
typedef struct { size_t size; void *extension; void *error; const char *message; size_t message_size; } Message;
typedef struct { size_t size; void *extension; void *error; int code; } Code;
typedef struct { size_t size; void *extension; void *client; void *program; const char *options; size_t options_size; void *executable; } Compile;
typedef struct { size_t size; void *extension; void *executable; void *options; void *const *const *arguments; size_t num_devices, num_args; } Execute;
typedef void *(*Function)(void *);

enum { ERROR_DESTROY = 0, ERROR_MESSAGE = 1, ERROR_CODE = 2, ADDRESSABLE = 16, COMPILE = 20, ID = 23, PROCESS = 24, RUNS_ON = 52, EXECUTE = 55, POINTER = 73 };
static Api api;
static const Api *real;
static char fault[256];
static int fault_code = 3;

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
    of->code = fault_code;
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

typedef struct { size_t size; void *extension; void *of; void *const *devices; size_t num_devices; } Devices;
typedef struct { size_t size; void *extension; void *description; int number; } Number;
static size_t all;

static void *addressable(void *args) {
    void *error = call(ADDRESSABLE, args);
    Devices *of = args;
    if (!error) all = of->num_devices, of->num_devices = (all + 1) / 2;
    return error;
}

static void *process(void *args) {
    Number id = *(Number *)args;
    void *error = call(ID, &id);
    ((Number *)args)->number = (size_t)id.number >= (all + 1) / 2;
    return error;
}

// Of a program on several devices, the first half is here.
static void *runs_on(void *args) {
    void *error = call(RUNS_ON, args);
    Devices *of = args;
    if (!error && of->num_devices > 1) of->num_devices = (of->num_devices + 1) / 2;
    return error;
}

static void *execute(void *args) {
    Execute *of = args;
    const char *how = getenv("FAULTY_EXECUTE");
    if (how && strcmp(how, "hang") == 0) for (;;) pause();
    if (how && strcmp(how, "crash") == 0) abort();
    if (how && strcmp(how, "memory") == 0) {
        snprintf(fault, sizeof fault, "Out of memory while trying to allocate 17179869184 bytes.");
        fault_code = 8;
        return fault;
    }
    if (getenv("FAULTY_SLICE")) {
        Devices on = { sizeof on, NULL, of->executable, NULL, 0 };
        void *error = call(RUNS_ON, &on);
        if (error || on.num_devices == of->num_devices) return error ? error : call(EXECUTE, args);
        snprintf(fault, sizeof fault, "a launch on %zu of %zu devices", of->num_devices, on.num_devices);
        return fault;
    }
    const char *file = getenv("FAULTY_LAUNCH");
    if (!file || of->num_devices < 2 || of->num_devices > 64 || unlink(file) != 0) return call(EXECUTE, args);
    // The second device gets buffers of the first, so the plugin's own checks fail there.
    void *const *lists[64];
    memcpy(lists, of->arguments, of->num_devices * sizeof *lists);
    lists[1] = lists[0];
    of->arguments = lists;
    return call(EXECUTE, args);
}

typedef struct { size_t size; void *extension; void *buffer; unsigned char *pointer; } Pointer;

static void *pointer(void *args) {
    void *error = call(POINTER, args);
    Pointer *of = args;
    if (!error) of->pointer[2] ^= 0x40;
    return error;
}

// A fake profiler: encodes the fields of an XSpace, and appends an extra byte, as XLA's plugins do.
typedef struct { size_t size; void *session; unsigned char *buffer; size_t buffer_size; } Collect;
typedef struct { size_t size; const char *options; size_t options_size; void *session; } Create;
typedef struct { size_t size; void *priv; void (*error_destroy)(void *), (*error_message)(void *); Function error_code, create, destroy, start, stop, collect; } Recorder;
typedef struct { size_t size; int kind; void *next; Recorder *recorder; long long context; } Extension;
static unsigned char recorded[256];
static size_t recorded_size;

static void field(int number, const void *bytes, size_t size) {
    recorded[recorded_size++] = (unsigned char)(number << 3 | 2);
    recorded[recorded_size++] = (unsigned char)size;
    memmove(recorded + recorded_size, bytes, size);
    recorded_size += size;
}

static size_t varint(unsigned char *to, int number, unsigned long long value) {
    size_t n = 0;
    to[n++] = (unsigned char)(number << 3);
    for (; value >= 128; value >>= 7) to[n++] = (unsigned char)(value | 128);
    to[n++] = (unsigned char)value;
    return n;
}

// Turns the bytes written since `from` into one field.
static void enclose(size_t from, int number) {
    unsigned char inner[200];
    size_t size = recorded_size - from;
    memcpy(inner, recorded + from, size);
    recorded_size = from;
    field(number, inner, size);
}

static void *recorder_create(void *args) { return ((Create *)args)->session = recorded, NULL; }
static void *recorder_nothing(void *args) { return (void)args, NULL; }
static void recorder_error_destroy(void *args) { (void)args; }
static void recorder_message(void *args) {
    Message *of = args;
    of->message = "the counters are in use";
    of->message_size = strlen(of->message);
}
static void *recorder_code(void *args) { return ((Code *)args)->code = 9, NULL; }
static void *fails(const char *when) { return strcmp(getenv("FAULTY_PROFILER"), when) == 0 ? recorded : NULL; }
static void *recorder_start(void *args) { return (void)args, fails("fails"); }
static void *recorder_stop(void *args) { return (void)args, fails("fails at its end"); }

static void *recorder_collect(void *args) {
    Collect *of = args;
    unsigned char bytes[32];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    recorded_size = 0;
    field(2, "/device:GPU:0", 13);
    size_t line = recorded_size, n = varint(bytes, 1, 7);
    n += varint(bytes + n, 3, now.tv_sec * 1000000000ull + now.tv_nsec);
    memcpy(recorded + recorded_size, bytes, n);
    recorded_size += n;
    field(2, "Stream #7", 9);
    n = varint(bytes, 1, 1);
    n += varint(bytes + n, 2, 2000000);
    n += varint(bytes + n, 3, 5000000);
    field(4, bytes, n);
    enclose(line, 3);
    size_t named = recorded_size;
    recorded_size += varint(recorded + recorded_size, 1, 1);
    size_t metadata = recorded_size;
    recorded_size += varint(recorded + recorded_size, 1, 1);
    field(2, "gemm_fusion", 11);
    enclose(metadata, 2);
    enclose(named, 4);
    enclose(0, 1);
    field(3, "one event was dropped", 21);
    recorded[recorded_size] = 0;
    if (strcmp(getenv("FAULTY_PROFILER"), "records into ours") != 0)
        of->buffer = recorded;
    else if (of->buffer)
        memcpy(of->buffer, recorded, recorded_size + 1);
    of->buffer_size = recorded_size + 1;
    return NULL;
}

static Recorder recorder = { sizeof recorder, NULL, recorder_error_destroy, recorder_message, recorder_code, recorder_create, recorder_nothing, recorder_start, recorder_stop, recorder_collect };
static Extension extension = { sizeof extension, 1, NULL, &recorder, 0 };

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
    if (getenv("FAULTY_MEMORY")) api.table[POINTER] = pointer;
    if (getenv("FAULTY_EXTENSIONS")) api.extensions = NULL;
    if (getenv("FAULTY_SLICE")) {
        api.table[ADDRESSABLE] = addressable;
        api.table[PROCESS] = process;
        api.table[RUNS_ON] = runs_on;
    }
    if (getenv("FAULTY_PROFILER")) {
        extension.next = api.extensions;
        api.extensions = &extension;
    }
    return &api;
}
