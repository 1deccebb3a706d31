/* The picture of a mask and its tiles. */
#ifndef SP_CLI_PICTURE_H
#define SP_CLI_PICTURE_H

#include "splat.h"

/* Draws distinct mask 0 to a .png of at most about 1024 pixels a side: computed tiles tinted by kind, a line around
 * each where tiles are large enough, allowed pairs dark. A pixel of more than one pair shows their mean. Memory
 * follows the picture, not the mask. */
enum splat_status sp_picture_write(const char *path, const splat_mask *mask, const splat_plan *plan);

/* One line that says what the colours mean. */
void sp_picture_print_colours(void);

#endif
