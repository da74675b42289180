/* The command that every spawn benchmark starts: nothing, statically linked. */
int main(void) { return 0; }
