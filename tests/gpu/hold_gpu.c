/* Holds GPUs as an engine does: opens and maps their device files and claims memory in the stand-in libnvidia-ml.
 *
 * A program in C, since it has to write over its own arguments as setproctitle does, and hundreds of it have to be light.
 * README.md lists the options. Devices are in /dev and claims in /run/standin-gpu; with $STANDIN_GPU both are in there.
 * Each process says "ready PID TITLE" on standard output when it holds what it should, the leader of a tree last.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_GPUS = 64, TITLE_SIZE = 128, PATH_SIZE = 512 };

static const char *program;
static char *arguments; /* where the kernel reads /proc/PID/cmdline, */
static size_t room;     /* and how much it reads */

static int gpus[MAX_GPUS], gpu_count;
static long mib;
static const char *title, *leader_title, *helper_title;
static char type = 'C';
static bool tree, ignore_term, leave_thread;
static int respawns;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", program, what, strerror(errno));
    exit(1);
}

/* ---- what one process does ---- */

static const char *state_folder(void) {
    const char *folder = getenv("STANDIN_GPU");
    return folder ? folder : "/run/standin-gpu";
}

/* As CUDA does it; a monitor opens devices and maps none. */
static void use_device(const char *name) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/dev/%s", getenv("STANDIN_GPU") ? state_folder() : "", name);
    int file = open(path, O_RDWR);
    if (file < 0 || mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED)
        fail(path);
}

/* In clock ticks since boot: with the pid it says which process this is. */
static unsigned long long start_ticks(void) {
    char stat[1024];
    unsigned long long ticks = 0;
    FILE *file = fopen("/proc/self/stat", "r");
    if (!file)
        fail("/proc/self/stat");
    stat[fread(stat, 1, sizeof stat - 1, file)] = 0;
    fclose(file);
    char *field = strrchr(stat, ')'); /* field 2; a blank stands before each that follows */
    for (int number = 2; number < 22 && field; number++)
        field = strchr(field + 1, ' ');
    if (!field || sscanf(field, "%llu", &ticks) != 1)
        fail("start time");
    return ticks;
}

static void claim(int gpu) {
    char draft[PATH_SIZE], path[PATH_SIZE];
    snprintf(draft, sizeof draft, "%s/claims/.%d.%d", state_folder(), (int)getpid(), gpu);
    snprintf(path, sizeof path, "%s/claims/%d.%llu.%d.%c", state_folder(), (int)getpid(), start_ticks(), gpu, type);
    FILE *file = fopen(draft, "w");
    if (!file || fprintf(file, "%ld\n", mib) < 0 || fclose(file) || rename(draft, path))
        fail(path);
}

static void hold(int gpu) {
    char name[32];
    snprintf(name, sizeof name, "nvidia%d", gpu);
    use_device(name);
    claim(gpu);
}

static void hold_all(const int *list, int count) {
    if (count) {
        use_device("nvidiactl");
        use_device("nvidia-uvm");
    }
    for (int i = 0; i < count; i++)
        hold(list[i]);
}

/* The title becomes all of the command line, and the name of the process, as setproctitle makes it. */
static void rename_to(const char *name) {
    memset(arguments, 0, room);
    memcpy(arguments, name, strlen(name) < room ? strlen(name) : room - 1);
    prctl(PR_SET_NAME, name);
}

static void say_ready(const char *name) {
    char line[TITLE_SIZE + 32];
    int length = snprintf(line, sizeof line, "ready %d %s\n", (int)getpid(), name);
    if (write(STDOUT_FILENO, line, (size_t)length) != length) /* in one piece: others write there too */
        fail("standard output");
}

static void *stay(void *unused) {
    for (;;)
        pause();
    return unused;
}

/* Live until a signal ends it; with --leave-thread as a zombie, one thread of which lives and has the devices open. */
static void remain(void) {
    pthread_t thread;
    if (leave_thread && pthread_create(&thread, NULL, stay, NULL) == 0)
        pthread_exit(NULL);
    stay(NULL);
}

/* ---- a tree: a leader without GPU, a rank for each GPU, perhaps a helper without GPU ---- */

static pid_t children[MAX_GPUS + 1]; /* rank i at i; the helper after the ranks */
static sigset_t handled;             /* what the leader waits for instead of being interrupted */

/* Start rank `number`, or the helper, and wait until it is ready. */
static void spawn(int number) {
    int ends[2];
    char name[TITLE_SIZE], told;
    snprintf(name, sizeof name, number < gpu_count ? "%s_TP%d" : "%s", number < gpu_count ? title : helper_title, number);
    if (pipe(ends) || (children[number] = fork()) < 0)
        fail("fork");
    if (children[number] == 0) {
        sigprocmask(SIG_UNBLOCK, &handled, NULL);
        rename_to(name);
        hold_all(&gpus[number], number < gpu_count);
        say_ready(name);
        close(ends[0]);
        close(ends[1]); /* tells the leader */
        remain();
    }
    close(ends[1]);
    while (read(ends[0], &told, 1) < 0 && errno == EINTR)
        ;
    close(ends[0]);
}

/* Rank or helper that has ended, or -1. */
static int reap(int options) {
    pid_t pid = waitpid(-1, NULL, options);
    for (int number = 0; pid > 0 && number <= gpu_count; number++)
        if (children[number] == pid) {
            children[number] = 0;
            return number;
        }
    return -1;
}

/* A child that dies is replaced as long as there are respawns; SIGTERM ends the children, then the leader. */
static void lead(void) {
    int count = gpu_count + (helper_title != NULL), signal_number, number;
    sigemptyset(&handled);
    sigaddset(&handled, SIGCHLD);
    if (!ignore_term)
        sigaddset(&handled, SIGTERM);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    for (number = 0; number < count; number++)
        spawn(number);
    say_ready(leader_title ? leader_title : program);
    while (sigwait(&handled, &signal_number) == 0 && signal_number == SIGCHLD)
        while ((number = reap(WNOHANG)) >= 0)
            if (respawns > 0) {
                respawns--;
                spawn(number);
            }
    for (number = 0; number < count; number++)
        if (children[number])
            kill(children[number], SIGTERM);
    while (reap(0) >= 0)
        ;
}

/* ---- the command line ---- */

static void usage(void) {
    fprintf(stderr, "usage: %s GPU[,GPU...] MIB [--title TITLE] [--type C|G|M] [--ignore-term] [--leave-thread]\n"
                    "       [--tree [--leader TITLE] [--helper TITLE] [--respawn TIMES]]\n", program);
    exit(2);
}

static char *kept(const char *text) {
    char *copy = strlen(text) < TITLE_SIZE - 8 ? strdup(text) : NULL;
    if (!copy)
        usage();
    return copy;
}

/* Texts are copied, since the arguments are written over. */
static void parse(int argc, char **argv) {
    static const struct option options[] = {
        {"title", required_argument, NULL, 't'},    {"leader", required_argument, NULL, 'l'},
        {"helper", required_argument, NULL, 'h'},   {"respawn", required_argument, NULL, 'r'},
        {"type", required_argument, NULL, 'y'},     {"tree", no_argument, NULL, 'f'},
        {"ignore-term", no_argument, NULL, 'i'},    {"leave-thread", no_argument, NULL, 'z'},
        {NULL, 0, NULL, 0},
    };
    int option;
    program = kept(argv[0]);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 't': title = kept(optarg); break;
        case 'l': leader_title = kept(optarg); break;
        case 'h': helper_title = kept(optarg); break;
        case 'r': respawns = atoi(optarg); break;
        case 'y': type = optarg[0]; break;
        case 'f': tree = true; break;
        case 'i': ignore_term = true; break;
        case 'z': leave_thread = true; break;
        default: usage();
        }
    if (argc - optind != 2 || !strchr("CGM", type) || (tree && !title))
        usage();
    mib = atol(argv[optind + 1]);
    for (char *list = argv[optind], *end = list; *end; list = end + 1) {
        gpus[gpu_count++] = (int)strtol(list, &end, 10);
        if (end == list || (*end && *end != ',') || gpu_count == MAX_GPUS)
            usage();
    }
}

int main(int argc, char **argv) {
    arguments = argv[0];
    room = (size_t)(argv[argc - 1] + strlen(argv[argc - 1]) + 1 - argv[0]);
    parse(argc, argv);
    if (ignore_term)
        signal(SIGTERM, SIG_IGN);
    const char *name = tree ? leader_title : title;
    if (name)
        rename_to(name);
    if (tree) {
        lead();
        return 0;
    }
    hold_all(gpus, gpu_count);
    say_ready(name ? name : program);
    remain();
}
