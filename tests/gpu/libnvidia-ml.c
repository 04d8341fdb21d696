/* A stand-in for NVIDIA's libnvidia-ml.so.1: GPUs described by text files, memory claimed by real processes.
 *
 * It knows nothing by itself: each call reads the files in /run/standin-gpu (or $STANDIN_GPU) anew, so that a test can
 * change the hardware under a client that runs. README.md describes the files. Symbols, structures and return codes are
 * those that nvidia-ml-py 13.615.71 uses. Memory is in bytes here, in MiB in the files.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t; /* 1 + number of the GPU in the files */

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { HOST = -1, VALUE_SIZE = 256, PATH_SIZE = 512 };

static const unsigned UNCORRECTED = 1;
static const unsigned FIELD_RECOVERY_ACTION = 230, VALUE_TYPE_UNSIGNED_INT = 1;
static const unsigned NOT_MIG = 0xffffffff;          /* gpuInstanceId and computeInstanceId of a whole GPU */
static const uint64_t VALUE_NOT_AVAILABLE = ~0ULL;   /* usedGpuMemory */
static const unsigned MEMORY_V2 = 0x02000028;        /* size of the structure, and its version in the top byte */
static const uint64_t MIB = 1024 * 1024;

typedef struct { uint64_t total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned pid; uint64_t usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { uint64_t total, free, used; } nvmlBAR1Memory_t;
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct {
    unsigned fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    union { unsigned uiVal; double dVal; } value; /* 8 bytes, as its widest members */
} nvmlFieldValue_t;

static atomic_int users; /* nvmlInit calls that no nvmlShutdown has answered */

/* ---- the files ---- */

static void path_of(char path[PATH_SIZE], const char *name) {
    const char *folder = getenv("STANDIN_GPU");
    snprintf(path, PATH_SIZE, "%s/%s", folder ? folder : "/run/standin-gpu", name);
}

/* Find the line "KEY VALUE" of the host, or "GPU KEY VALUE". Faults come first: they may change what hardware says. */
static bool look_up(int gpu, const char *key, char value[VALUE_SIZE]) {
    static const char *const files[] = {"faults.conf", "gpus.conf"};
    char wanted[64], path[PATH_SIZE], line[VALUE_SIZE];
    int length = gpu == HOST ? snprintf(wanted, sizeof wanted, "%s", key)
                             : snprintf(wanted, sizeof wanted, "%d %s", gpu, key);
    bool found = false;
    for (size_t i = 0; i < 2 && !found; i++) {
        path_of(path, files[i]);
        FILE *file = fopen(path, "re");
        while (file && !found && fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = 0;
            found = strncmp(line, wanted, (size_t)length) == 0 && (line[length] == ' ' || line[length] == 0);
        }
        if (file)
            fclose(file);
    }
    if (found)
        strcpy(value, line + length + (line[length] == ' '));
    return found;
}

static bool is_set(int gpu, const char *key) {
    char value[VALUE_SIZE];
    return look_up(gpu, key, value);
}

static double number(int gpu, const char *key, double otherwise) {
    char value[VALUE_SIZE];
    return look_up(gpu, key, value) ? strtod(value, NULL) : otherwise;
}

static uint64_t mib(int gpu, const char *key) { return (uint64_t)number(gpu, key, 0) * MIB; }

/* The number at a place in a row such as "5 16 5 16". */
static unsigned column(int gpu, const char *key, unsigned place) {
    char value[VALUE_SIZE] = "", *rest = value;
    look_up(gpu, key, value);
    for (; place; place--)
        strtoul(rest, &rest, 10);
    return (unsigned)strtoul(rest, NULL, 10);
}

static bool exists(int gpu) { return is_set(gpu, "uuid"); }

static bool counted(int gpu) { return exists(gpu) && !is_set(gpu, "absent"); }

/* ---- claims: memory that processes hold ---- */

struct claim {
    char name[128]; /* PID.START_TICKS.GPU.TYPE */
    unsigned pid;
    char type;
    uint64_t bytes;
    bool alive, never_freed;
    double dead_for_s; /* since anyone saw first that it is dead */
};

/* The process with that start time runs. A zombie counts while other threads of it live (measured on an H200). */
static bool is_alive(unsigned pid, unsigned long long start_ticks) {
    char path[64], stat[1024], state;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    stat[fread(stat, 1, sizeof stat - 1, file)] = 0;
    fclose(file);
    char *rest = strrchr(stat, ')'); /* the name before may hold anything */
    long threads;
    unsigned long long started;
    if (!rest || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu",
                        &state, &threads, &started) != 3)
        return false;
    return started == start_ticks && !((state == 'Z' || state == 'X') && threads <= 1);
}

static void path_of_claim(char path[PATH_SIZE], const struct claim *claim, const char *ending) {
    char name[sizeof claim->name + 16];
    snprintf(name, sizeof name, "claims/%s%s", claim->name, ending);
    path_of(path, name);
}

/* The driver frees memory a moment after the process has died. Whoever looks first notes that moment for all others. */
static double dead_for(const struct claim *claim) {
    char path[PATH_SIZE];
    path_of_claim(path, claim, ".dead");
    struct timespec clock;
    clock_gettime(CLOCK_BOOTTIME, &clock);
    double now = (double)clock.tv_sec + (double)clock.tv_nsec / 1e9, died = now;
    int note = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (note >= 0) {
        dprintf(note, "%.9f\n", now);
        close(note);
        return 0;
    }
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%lf", &died) != 1)
        died = now; /* another client is about to write it */
    if (file)
        fclose(file);
    return now - died;
}

/* The next claim on the GPU, of the living and the dead. */
static bool next_claim(DIR *folder, int gpu, struct claim *claim) {
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        unsigned long long start_ticks, size = 0;
        int its_gpu, length = 0;
        char path[PATH_SIZE];
        if (sscanf(entry->d_name, "%u.%llu.%d.%c%n", &claim->pid, &start_ticks, &its_gpu, &claim->type, &length) != 4 ||
            its_gpu != gpu || entry->d_name[length] != 0 || (size_t)length >= sizeof claim->name)
            continue;
        memcpy(claim->name, entry->d_name, (size_t)length + 1);
        path_of_claim(path, claim, "");
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        char ending[16] = "";
        if (fscanf(file, "%llu %15s", &size, ending) < 1)
            size = 0;
        fclose(file);
        claim->bytes = size * MIB;
        claim->never_freed = strcmp(ending, "never_freed") == 0;
        claim->alive = is_alive(claim->pid, start_ticks);
        claim->dead_for_s = claim->alive ? 0 : dead_for(claim);
        return true;
    }
    return false;
}

static DIR *open_claims(void) {
    char path[PATH_SIZE];
    path_of(path, "claims");
    return opendir(path);
}

/* Bytes in use, without the driver's reserve. */
static uint64_t allocated(int gpu) {
    uint64_t bytes = mib(gpu, "stuck") + column(gpu, "ghost", 1) * MIB;
    double delay_s = number(gpu, "free_delay_s", 0);
    struct claim claim;
    DIR *folder = open_claims();
    while (next_claim(folder, gpu, &claim))
        if (claim.alive || claim.never_freed || claim.dead_for_s < delay_s)
            bytes += claim.bytes;
    if (folder)
        closedir(folder);
    return bytes;
}

/* ---- what calls have in common ---- */

static void hang(void) {
    for (;;)
        pause();
}

/* The GPU of a handle, and whether it can be asked at all. */
static nvmlReturn_t usable(nvmlDevice_t device, int *gpu) {
    *gpu = (int)(intptr_t)device - 1;
    if (!users)
        return UNINITIALIZED;
    if (*gpu < 0 || !exists(*gpu))
        return INVALID_ARGUMENT;
    return is_set(*gpu, "lost") ? GPU_IS_LOST : SUCCESS;
}

static nvmlReturn_t give_text(int gpu, const char *key, char *text, unsigned size) {
    char value[VALUE_SIZE] = "";
    look_up(gpu, key, value);
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return SUCCESS;
}

static nvmlReturn_t device_text(nvmlDevice_t device, const char *key, char *text, unsigned size) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    return problem ? problem : give_text(gpu, key, text, size);
}

/* A number of a row; a key that is not there counts as 0. */
static nvmlReturn_t device_number(nvmlDevice_t device, const char *key, unsigned place, unsigned *value) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (!problem)
        *value = column(gpu, key, place);
    return problem;
}

static nvmlReturn_t give_handle(int gpu, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)(intptr_t)(gpu + 1);
    return usable(*device, &gpu);
}

static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (problem)
        return problem;
    if (is_set(gpu, "hang"))
        hang();
    if (is_set(gpu, "memory_not_supported"))
        return NOT_SUPPORTED;
    if (is_set(gpu, "reset_required"))
        return RESET_REQUIRED;
    memory->total = mib(gpu, "total_mib");
    memory->reserved = mib(gpu, "reserved_mib");
    memory->used = allocated(gpu);
    uint64_t taken = memory->reserved + memory->used;
    memory->free = memory->total > taken ? memory->total - taken : 0;
    return SUCCESS;
}

/* Fill the list with processes of a type as far as there is room; *count becomes how many there are. */
static nvmlReturn_t processes(nvmlDevice_t device, char type, unsigned *count, nvmlProcessInfo_t *list) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (problem)
        return problem;
    if (is_set(gpu, "hang"))
        hang();
    if (is_set(gpu, "no_process_v3"))
        return FUNCTION_NOT_FOUND;
    bool hidden = is_set(gpu, "process_memory_none");
    unsigned room = list ? *count : 0, found = 0;
    struct claim claim = {.pid = column(gpu, "ghost", 0), .bytes = column(gpu, "ghost", 1) * MIB, .type = 'C'};
    claim.alive = claim.pid != 0;
    DIR *folder = open_claims();
    do {
        if (claim.alive && claim.type == type && found++ < room)
            list[found - 1] = (nvmlProcessInfo_t){claim.pid, hidden ? VALUE_NOT_AVAILABLE : claim.bytes, NOT_MIG, NOT_MIG};
    } while (next_claim(folder, gpu, &claim));
    if (folder)
        closedir(folder);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* ---- the library ---- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is_set(HOST, "init_hang"))
        hang();
    if (is_set(HOST, "mismatch"))
        return LIB_RM_VERSION_MISMATCH;
    if (is_set(HOST, "not_loaded"))
        return DRIVER_NOT_LOADED;
    users++;
    return SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    if (!users)
        return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *text, unsigned size) {
    return users ? give_text(HOST, "driver", text, size) : UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    return users ? give_text(HOST, "nvml", text, size) : UNINITIALIZED;
}

/* 13020 is CUDA 13.2. It needs no nvmlInit. */
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = (int)number(HOST, "cuda", 0);
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* ---- which GPUs there are: an index skips the GPUs that the driver does not see ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 0;
    for (int gpu = 0; exists(gpu); gpu++)
        *count += counted(gpu);
    return users ? SUCCESS : UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    for (int gpu = 0; exists(gpu); gpu++)
        if (counted(gpu) && index-- == 0)
            return give_handle(gpu, device);
    return users ? INVALID_ARGUMENT : UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char its[VALUE_SIZE];
    for (int gpu = 0; look_up(gpu, "uuid", its); gpu++)
        if (counted(gpu) && strcmp(its, uuid) == 0)
            return give_handle(gpu, device);
    return users ? NOT_FOUND : UNINITIALIZED;
}

static bool parse_bus_id(const char *text, unsigned part[3]) {
    return sscanf(text, "%x:%x:%x", &part[0], &part[1], &part[2]) == 3;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device) {
    unsigned wanted[3], its[3];
    char bus[VALUE_SIZE];
    if (!parse_bus_id(text, wanted))
        return INVALID_ARGUMENT;
    for (int gpu = 0; look_up(gpu, "bus", bus); gpu++)
        if (counted(gpu) && parse_bus_id(bus, its) && memcmp(its, wanted, sizeof its) == 0)
            return give_handle(gpu, device);
    return users ? NOT_FOUND : UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    *index = 0;
    for (int before = 0; !problem && before < gpu; before++)
        *index += counted(before);
    return problem;
}

/* ---- what a GPU is ---- */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    return device_text(device, "name", text, size);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    return device_text(device, "uuid", text, size);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    return device_number(device, "minor", 0, minor);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    unsigned part[3] = {0};
    memset(pci, 0, sizeof *pci);
    nvmlReturn_t problem = device_text(device, "bus", pci->busId, sizeof pci->busId);
    if (!problem && parse_bus_id(pci->busId, part)) {
        pci->domain = part[0], pci->bus = part[1], pci->device = part[2];
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", part[0] & 0xffff, part[1] & 0xff,
                 part[2] & 0xff);
    }
    return problem;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    char value[VALUE_SIZE] = "";
    *major = *minor = 0;
    nvmlReturn_t problem = device_text(device, "compute", value, sizeof value);
    if (!problem)
        sscanf(value, "%d.%d", major, minor);
    return problem;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
    int gpu;
    nvmlReturn_t problem = usable(other, &gpu);
    return problem ? problem : device_number(one, "topology", (unsigned)gpu, level);
}

/* ---- how it does ---- */

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info) {
    return info->version == MEMORY_V2 ? memory(device, info) : ARGUMENT_VERSION_MISMATCH;
}

/* The first version counts the driver's reserve as used. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info) {
    nvmlMemory_v2_t now;
    nvmlReturn_t problem = memory(device, &now);
    if (!problem)
        *info = (nvmlMemory_t){now.total, now.free, now.reserved + now.used};
    return problem;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list) {
    return processes(device, 'C', count, list);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list) {
    return processes(device, 'G', count, list);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *list) {
    return processes(device, 'M', count, list);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode) {
    return device_number(device, "persistence", 0, mode);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (!problem)
        *current = *pending = is_set(gpu, "mig");
    return problem;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    rates->memory = 0;
    return device_number(device, "utilization", 0, &rates->gpu);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    return device_number(device, "power_mw", 0, milliwatts);
}

/* ---- what it does under load: throttled is the mask of nvmlClocksEventReasons, 1 (idle) without the key ---- */

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return type > 3 ? INVALID_ARGUMENT : device_number(device, "clock_mhz", 0, mhz);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    return sensor ? INVALID_ARGUMENT : device_number(device, "temperature", 0, celsius);
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask) {
    unsigned said = 0;
    nvmlReturn_t problem = device_number(device, "throttled", 0, &said);
    *mask = said ? said : 1;
    return problem;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, mask);
}

/* pcie: generation and width that are possible, then those of now */
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *value) {
    return device_number(device, "pcie", 0, value);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *value) {
    return device_number(device, "pcie", 1, value);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *value) {
    return device_number(device, "pcie", 2, value);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *value) {
    return device_number(device, "pcie", 3, value);
}

/* ---- its memory: ecc is whether it is on, and errors that it could not mend; a GPU without the key has none ---- */

static nvmlReturn_t has_ecc(nvmlDevice_t device, int *gpu) {
    nvmlReturn_t problem = usable(device, gpu);
    return problem ? problem : is_set(*gpu, "ecc") ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    int gpu;
    nvmlReturn_t problem = has_ecc(device, &gpu);
    if (!problem)
        *current = *pending = column(gpu, "ecc", 0);
    return problem;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, uint64_t *count) {
    int gpu;
    nvmlReturn_t problem = has_ecc(device, &gpu);
    (void)counter; /* it does not remember more than the volatile ones */
    if (!problem)
        *count = type == UNCORRECTED ? column(gpu, "ecc", 1) : 0;
    return problem;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failure) {
    int gpu;
    nvmlReturn_t problem = has_ecc(device, &gpu);
    *corrected = *uncorrected = 0;
    *pending = !problem && column(gpu, "remapped_rows", 0);
    *failure = !problem && column(gpu, "remapped_rows", 1);
    return problem;
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (!problem && !is_set(gpu, "retired_pages_pending"))
        problem = NOT_SUPPORTED; /* as on a GPU that replaces rows instead */
    *pending = !problem && column(gpu, "retired_pages_pending", 0);
    return problem;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *bar1) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    if (!problem)
        *bar1 = (nvmlBAR1Memory_t){mib(gpu, "bar1_mib"), mib(gpu, "bar1_mib"), 0};
    return problem;
}

/* Each field has an answer of its own; the recovery action is the only one that is known. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    int gpu;
    nvmlReturn_t problem = usable(device, &gpu);
    for (int i = 0; !problem && i < count; i++) {
        fields[i].nvmlReturn = fields[i].fieldId == FIELD_RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
        fields[i].valueType = VALUE_TYPE_UNSIGNED_INT;
        fields[i].value.uiVal = column(gpu, "recovery", 0);
    }
    return problem;
}
